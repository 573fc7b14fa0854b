"""Axes of torch's tensors in JAX: tensors are cut into parts, joined, or have their axes permuted, each with an exact
inverse."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import numpy as np

from jaxformer.convert.patterns import Shape, Sizes, read_pattern
from jaxformer.errors import ConversionError
from jaxformer.validation.fields import check_size

MOST_AXES = 64
"""Maximum number of axes of a numpy array."""


class _Part(NamedTuple):
    number: int
    of: int
    axis: int
    shares: tuple[int, ...]


class Part(_Part):
    """Part of a torch tensor that holds several JAX tensors, as packed queries, keys and values.

    The tensor is cut along `axis` into `of` parts, equal or in proportion to `shares`: (4, 1, 1) if four query heads share one
    key head. With a layout that has summands, joined by +, the parts are these summands.
    """

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
        """Cut this part out of the whole tensor; ValueError if it has no such parts."""
        return in_shares(array, self.shares or (1,) * self.of, self.axis)[self.number] if self.of > 1 else array

    def fits(self, array: np.ndarray) -> bool:
        """True if an array can be cut into such parts."""
        return -array.ndim <= self.axis < array.ndim and array.shape[self.axis] % (sum(self.shares) or self.of) == 0


WHOLE = Part()


@dataclass(frozen=True)
class Join:
    """Several torch tensors that are one JAX tensor.

    `Join(("q", "k", "v"))` joins projections, `Join(("0", "1"), stacked=True)` experts, and `Join(("ih", "hh"), summed=True)`
    the two biases of an LSTM that has only one in JAX.
    """

    names: tuple[str, ...] | str
    """Replacements of `{part}` in the rule's torch name, in the order in which the tensors are joined. A size of the model by
    its letter, as "E", stands for the numbers below it: `Join("E", stacked=True)` joins all experts."""
    axis: int = 0
    """Axis of torch's tensors along which they are joined."""
    shares: tuple[int | str, ...] = ()
    """Sizes along that axis, in proportion: (4, 1, 1) if four query heads share one key head, or ("N", "K", "K") by the model's
    own sizes. Equal sizes if empty, or if the model does not state its sizes."""
    stacked: bool = False
    """True if the axis is a new one."""
    summed: bool = False
    """True if the tensors are added up, which has no inverse: a sum does not determine its terms."""

    def __post_init__(self) -> None:
        spelled = isinstance(self.names, tuple) and self.names and all(isinstance(name, str) for name in self.names)
        if not spelled and not (isinstance(self.names, str) and re.fullmatch("[A-Z]", self.names)):
            raise ConversionError(f"names = {self.names!r:.40} of a Join; give a tuple of strings, as ('q', 'k', 'v')")
        if self.shares and len(self.shares) != len(self.names):
            raise ConversionError(f"a Join has {len(self.names)} names and {len(self.shares)} shares; give one to each name")

    def counted(self, sizes: Sizes) -> "Join":
        """Return the join with its names spelled out, if the size that counts them is known."""
        if not isinstance(self.names, str) or self.names not in sizes:
            return self
        return replace(self, names=tuple(map(str, range(sizes[self.names]))))

    def together(self, arrays: list[np.ndarray], sizes: Sizes) -> np.ndarray:
        """Join tensors into one, still in torch's layout; ValueError if their sizes do not fit."""
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
        """Cut the whole into torch's tensors, the inverse of `together`; ValueError if it cannot be cut so."""
        size, shares = whole.shape[self.axis], [sizes.get(it, 0) if isinstance(it, str) else it for it in self.shares]
        if not all(shares) or not shares:
            shares = [1] * len(self.names)
        if self.stacked:
            if size != len(self.names):
                raise ValueError(f"axis {self.axis} has {size} entries, for {len(self.names)} tensors")
            return [*np.moveaxis(whole, self.axis, 0)]
        return in_shares(whole, shares, self.axis)


def sum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Add up arrays in their own type; ValueError if their shapes differ."""
    if len({array.shape for array in arrays}) > 1:
        raise ValueError(f"shapes {', '.join(str([*array.shape]) for array in arrays)} cannot be added up")
    return functools.reduce(np.add, arrays)


def in_shares(whole: np.ndarray, shares: Sequence[int], axis: int) -> list[np.ndarray]:
    """Cut an array along an axis in these proportions; ValueError if its size is not divisible so."""
    size = whole.shape[axis]
    if size % sum(shares):
        raise ValueError(f"axis {axis} of {size} cannot be cut in proportions {[*shares]}")
    return np.split(whole, np.cumsum(shares)[:-1] * (size // sum(shares)), axis)


def shares_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return sizes as proportions, in the smallest integers; empty if they are equal."""
    return tuple(size // gcd(*sizes) for size in sizes) if len({*sizes}) > 1 else ()


@dataclass(frozen=True)
class Axes:
    """Layout for one shape: torch's axes are split, permuted and merged, as flax's `DenseGeneral` has (D, N, H) for (NH, D)."""

    torch: tuple[int, ...]
    """Shape of the torch tensor."""
    split: tuple[int, ...]
    """Shape of the torch tensor with some axes cut in two."""
    order: tuple[int, ...]
    """Order of the split axes in JAX."""
    jax: tuple[int, ...]
    """Shape of the JAX tensor: the ordered axes, some merged."""
    backwards: tuple[int, ...] = ()
    """Axes of the torch tensor that are reversed in JAX, as the spatial axes of the kernel of flax's `ConvTranspose`."""

    def to_jax(self, array: np.ndarray) -> np.ndarray:
        """Convert torch's array to JAX's layout; ValueError for another shape."""
        if array.shape != self.torch:
            raise ValueError(f"shape {list(array.shape)}, not {list(self.torch)}")
        return np.flip(array, self.backwards).reshape(self.split).transpose(self.order).reshape(self.jax)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Convert JAX's array to torch's layout, the inverse of `to_jax`."""
        ordered = array.reshape([self.split[axis] for axis in self.order])
        return np.flip(ordered.transpose(np.argsort(self.order)).reshape(self.torch), self.backwards)


Layout = str | Axes
"""Layout of a tensor: 'same'; 'transposed', all axes reversed; a pattern of torch's axes by name and then JAX's, as 'f d 1 -> d
f' (see patterns.py); or `Axes`, for one shape only."""


def to_jax_axes(array: np.ndarray, layout: Layout, sizes: Sizes, shape: Shape | None = None) -> np.ndarray:
    """Convert torch's array to JAX's layout, for which a pattern may need sizes; ValueError if it does not fit."""
    if isinstance(layout, Axes):
        return layout.to_jax(array)
    if layout in ("same", "transposed"):
        return array.T if layout == "transposed" else array
    return read_pattern(layout).to_jax(array, sizes, shape)


def to_torch_axes(array: np.ndarray, layout: Layout, sizes: Sizes, like: np.ndarray | None = None) -> np.ndarray:
    """Convert JAX's array to torch's layout; values that a pattern drops are taken from `like`."""
    if isinstance(layout, Axes):
        return layout.to_torch(array)
    if layout in ("same", "transposed"):
        return array.T if layout == "transposed" else array
    return read_pattern(layout).to_torch([array], sizes, like)
