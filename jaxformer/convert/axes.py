"""How the numbers of torch's tensors lie in ours: cut into parts, joined, with their axes in another order. Each has an exact
inverse."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np

from jaxformer.convert.patterns import Shape, Sizes, read_pattern
from jaxformer.errors import ConversionError
from jaxformer.validation.fields import check_size

MOST_AXES = 64
"""numpy has no array of more."""


class _Part(NamedTuple):
    number: int
    of: int
    axis: int
    shares: tuple[int, ...]


class Part(_Part):
    """One of several parts of a torch tensor: torch packs queries, keys and values so. They are cut along an axis, all equal,
    or in proportion to their `shares`: (4, 1, 1) where four heads of queries share one of keys. Where the rule's layout lays
    them side by side with +, they are its summands."""

    __slots__ = ()

    def __new__(cls, number: int = 0, of: int = 1, axis: int = 0, shares: tuple[int, ...] = ()) -> "Part":
        check_size("of", of)
        check_size("number", number, least=0, most=of - 1)
        check_size("axis", axis, least=-MOST_AXES, most=MOST_AXES - 1)
        if shares and len(shares) != of:
            raise ConversionError(f"a Part of {of} has {len(shares)} shares; give one to each part")
        for share in shares:
            check_size("a share of a Part", share)
        return super().__new__(cls, number, of, axis, shares)

    def cut(self, array: np.ndarray) -> np.ndarray:
        """It, of the whole tensor; ValueError where that has no such parts."""
        return in_shares(array, self.shares or (1,) * self.of, self.axis)[self.number] if self.of > 1 else array

    def fits(self, array: np.ndarray) -> bool:
        """Whether an array has such parts."""
        return -array.ndim <= self.axis < array.ndim and array.shape[self.axis] % (sum(self.shares) or self.of) == 0


WHOLE = Part()


@dataclass(frozen=True)
class Join:
    """Several torch tensors that are one of ours: `Join(("q", "k", "v"))`, or experts: `Join(("0", "1"), stacked=True)`; or the
    two biases of an LSTM that has one: `Join(("ih", "hh"), summed=True)`."""

    names: tuple[str, ...]
    """What `{part}` stands for in the torch name of the rule, in the order in which they are joined."""
    axis: int = 0
    """Of torch's tensors: the one along which they are joined."""
    shares: tuple[int | str, ...] = ()
    """Their sizes there, in proportion: (4, 1, 1) where four heads of queries share one of keys, and so ("N", "K", "K") by the
    model's own sizes. Empty, or for a model that does not say them: they are equal."""
    stacked: bool = False
    """Whether that axis is a new one."""
    summed: bool = False
    """Whether they are added up. There is no way back: a sum does not tell its terms."""

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple) or not self.names or not all(isinstance(name, str) for name in self.names):
            raise ConversionError(f"names = {self.names!r:.40} of a Join; give a tuple of strings, as ('q', 'k', 'v')")
        if self.shares and len(self.shares) != len(self.names):
            raise ConversionError(f"a Join has {len(self.names)} names and {len(self.shares)} shares; give one to each name")

    def together(self, arrays: list[np.ndarray], sizes: Sizes) -> np.ndarray:
        """The whole, still in torch's layout; ValueError where sizes do not go together."""
        if self.summed:
            return sum_of(arrays)
        if self.stacked:
            return np.stack(arrays, self.axis)
        whole = np.concatenate(arrays, self.axis)
        found, wanted = ([array.shape[self.axis] for array in each] for each in (arrays, self.apart(whole, sizes)))
        if found != wanted:
            raise ValueError(f"{', '.join(self.names)} have sizes {found} on axis {self.axis}, not {wanted}; give shares")
        return whole

    def apart(self, whole: np.ndarray, sizes: Sizes) -> list[np.ndarray]:
        """The inverse; ValueError where it cannot be cut so."""
        size, shares = whole.shape[self.axis], [sizes.get(it, 0) if isinstance(it, str) else it for it in self.shares]
        if not all(shares) or not shares:
            shares = [1] * len(self.names)
        if self.stacked:
            if size != len(self.names):
                raise ValueError(f"axis {self.axis} has {size} entries, for {len(self.names)} tensors")
            return [np.take(whole, number, self.axis) for number in range(size)]
        return in_shares(whole, shares, self.axis)


def sum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """In their type; ValueError where they are not of one shape."""
    if len({array.shape for array in arrays}) > 1:
        raise ValueError(f"shapes {', '.join(str([*array.shape]) for array in arrays)} cannot be added up")
    return functools.reduce(np.add, arrays)


def in_shares(whole: np.ndarray, shares: Sequence[int], axis: int) -> list[np.ndarray]:
    """It, cut along an axis in these proportions; ValueError where it cannot be cut so."""
    size = whole.shape[axis]
    if size % sum(shares):
        raise ValueError(f"axis {axis} of {size} cannot be cut in proportions {[*shares]}")
    return np.split(whole, np.cumsum(shares)[:-1] * (size // sum(shares)), axis)


def shares_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes in proportion, in the smallest numbers; empty where they are equal."""
    return tuple(size // gcd(*sizes) for size in sizes) if len({*sizes}) > 1 else ()


@dataclass(frozen=True)
class Axes:
    """torch's axes split, put in another order and merged again are ours: flax's `DenseGeneral` has (D, N, H) for (NH, D)."""

    torch: tuple[int, ...]
    """torch's shape."""
    split: tuple[int, ...]
    """The same with some axes cut in two."""
    order: tuple[int, ...]
    """Which of those comes first, second, ... in JAX."""
    jax: tuple[int, ...]
    """Our shape: those, some merged."""
    backwards: tuple[int, ...] = ()
    """torch's axes that run backwards in JAX, as the kernel of flax's `ConvTranspose` does over a picture."""

    def to_jax(self, array: np.ndarray) -> np.ndarray:
        """ValueError for another shape."""
        if array.shape != self.torch:
            raise ValueError(f"shape {list(array.shape)}, not {list(self.torch)}")
        return np.flip(array, self.backwards).reshape(self.split).transpose(self.order).reshape(self.jax)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """The inverse."""
        ordered = array.reshape([self.split[axis] for axis in self.order])
        return np.flip(ordered.transpose(np.argsort(self.order)).reshape(self.torch), self.backwards)


Layout = str | Axes
"""'same'; 'transposed', all axes in reverse; torch's axes by name and then ours, as 'f d 1 -> d f' (see patterns.py); or
`Axes`, for one shape alone."""


def to_jax_axes(array: np.ndarray, layout: Layout, sizes: Sizes, shape: Shape | None = None) -> np.ndarray:
    """torch's array in our layout, which a pattern may need sizes for; ValueError where it does not fit."""
    if isinstance(layout, Axes):
        return layout.to_jax(array)
    if layout in ("same", "transposed"):
        return array.T if layout == "transposed" else array
    return read_pattern(layout).to_jax(array, sizes, shape)


def to_torch_axes(array: np.ndarray, layout: Layout, sizes: Sizes, like: np.ndarray | None = None) -> np.ndarray:
    """The inverse; what a pattern drops is as in `like`."""
    if isinstance(layout, Axes):
        return layout.to_torch(array)
    if layout in ("same", "transposed"):
        return array.T if layout == "transposed" else array
    return read_pattern(layout).to_torch([array], sizes, like)
