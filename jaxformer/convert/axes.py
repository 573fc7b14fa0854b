"""How the numbers of torch's tensors lie in ours: cut into parts, joined, with their axes in another order. Each has an exact
inverse."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConversionError
from jaxformer.validation.fields import check_size

MOST_AXES = 64
"""numpy has no array of more."""


class _Part(NamedTuple):
    number: int
    of: int
    axis: int


class Part(_Part):
    """One of several equal parts of a torch tensor, cut along an axis: torch packs queries, keys and values so."""

    __slots__ = ()

    def __new__(cls, number: int = 0, of: int = 1, axis: int = 0) -> "Part":
        check_size("of", of)
        check_size("number", number, least=0, most=of - 1)
        check_size("axis", axis, least=-MOST_AXES, most=MOST_AXES - 1)
        return super().__new__(cls, number, of, axis)

    def cut(self, array: np.ndarray) -> np.ndarray:
        """It, of the whole tensor; ValueError where that has no such parts."""
        return np.split(array, self.of, self.axis)[self.number] if self.of > 1 else array


WHOLE = Part()


@dataclass(frozen=True)
class Join:
    """Several torch tensors that are one of ours: `Join(("q", "k", "v"))`, or experts: `Join(("0", "1"), stacked=True)`."""

    names: tuple[str, ...]
    """What `{part}` stands for in the torch name of the rule, in the order in which they are joined."""
    axis: int = 0
    """Of torch's tensors: the one along which they are joined."""
    shares: tuple[int, ...] = ()
    """Their sizes there, in proportion: (4, 1, 1) where four heads of queries share one of keys. Empty: they are equal."""
    stacked: bool = False
    """Whether that axis is a new one."""

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple) or not self.names or not all(isinstance(name, str) for name in self.names):
            raise ConversionError(f"names = {self.names!r:.40} of a Join; give a tuple of strings, as ('q', 'k', 'v')")
        if self.shares and len(self.shares) != len(self.names):
            raise ConversionError(f"a Join has {len(self.names)} names and {len(self.shares)} shares; give one to each name")

    def together(self, arrays: list[np.ndarray]) -> np.ndarray:
        """The whole, still in torch's layout; ValueError where sizes do not go together."""
        if self.stacked:
            return np.stack(arrays, self.axis)
        whole = np.concatenate(arrays, self.axis)
        sizes, wanted = ([array.shape[self.axis] for array in each] for each in (arrays, self.apart(whole)))
        if sizes != wanted:
            raise ValueError(f"{', '.join(self.names)} have sizes {sizes} on axis {self.axis}, not {wanted}; give shares")
        return whole

    def apart(self, whole: np.ndarray) -> list[np.ndarray]:
        """The inverse; ValueError where it cannot be cut so."""
        size, shares = whole.shape[self.axis], self.shares or (1,) * len(self.names)
        if self.stacked:
            if size != len(self.names):
                raise ValueError(f"axis {self.axis} has {size} entries, for {len(self.names)} tensors")
            return [np.take(whole, number, self.axis) for number in range(size)]
        if len(shares) != len(self.names) or size % sum(shares):
            raise ValueError(f"axis {self.axis} of {size} cannot be cut in proportions {list(shares)}")
        return np.split(whole, np.cumsum(shares)[:-1] * (size // sum(shares)), self.axis)


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

    def to_jax(self, array: np.ndarray) -> np.ndarray:
        """ValueError for another shape."""
        if array.shape != self.torch:
            raise ValueError(f"shape {list(array.shape)}, not {list(self.torch)}")
        return array.reshape(self.split).transpose(self.order).reshape(self.jax)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """The inverse."""
        ordered = array.reshape([self.split[axis] for axis in self.order])
        return ordered.transpose(np.argsort(self.order)).reshape(self.torch)


Layout = str | Axes
"""'same'; 'transposed', all axes in reverse; or torch's axes by name and then ours, as 'f d 1 -> d f': each name once on both
sides, 1 for an axis of one entry that the other side has not. `Axes` splits and merges them too."""


def to_jax_axes(array: np.ndarray, layout: Layout) -> np.ndarray:
    """torch's array in our layout; ValueError where it does not fit."""
    if isinstance(layout, Axes):
        return layout.to_jax(array)
    if layout in ("same", "transposed"):
        return array.T if layout == "transposed" else array
    return _reordered(array, *named_axes(layout))


def to_torch_axes(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The inverse."""
    if isinstance(layout, Axes):
        return layout.to_torch(array)
    if layout in ("same", "transposed"):
        return array.T if layout == "transposed" else array
    return _reordered(array, *reversed(named_axes(layout)))


@cache
def named_axes(layout: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """torch's axes and ours, of 'f d 1 -> d f'; ConversionError for what is no layout."""
    sides = [tuple(side.split()) for side in layout.split("->")]
    names = [sorted(axis for axis in side if axis != "1") for side in sides]
    if len(sides) != 2 or names[0] != names[1] or len(set(names[0])) != len(names[0]):
        raise ConversionError(
            f"layout = {layout!r} is none; give 'same', 'transposed', or torch's axes and ours, as 'f d 1 -> d f'"
        )
    return sides[0], sides[1]


def _reordered(array: np.ndarray, before: tuple[str, ...], after: tuple[str, ...]) -> np.ndarray:
    sizes = dict(zip(before, array.shape, strict=False)) | {"1": 1}
    if array.shape != tuple(sizes.get(axis) for axis in before):
        raise ValueError(f"shape {list(array.shape)} is not {' '.join(before)}")
    held = [axis for axis in before if axis != "1"]
    ordered = array.reshape([sizes[axis] for axis in held]).transpose([held.index(axis) for axis in after if axis != "1"])
    return ordered.reshape([sizes[axis] for axis in after])
