"""Patterns of layouts: the axes of a torch tensor by name, and the same axes as they lie in the JAX tensor.

    "f d 1 -> d f"                                               permuted axes; 1 is an axis of size 1
    "(N h 2) d -> d (N 2 h)"                                     merged axes are in brackets
    "(K (G + 1 + 1) H) d -> d (K G H + K H + K H)"               + concatenates
    "(_2 + t) d -> t d", "(v + _) d -> v d"                      axes that begin with _ are dropped in JAX

The terms between the +, from left to right, are blocks. Each block is on both sides, with the same names. A block of torch's
tensor with `_` in it is dropped. On the way back, its numbers are taken from the torch model that receives the tensor, or are
zeros.

A number is its own size. Every other size follows from the shapes, or is the model's: heads N, key/value heads K, query heads
per key/value head G = N / K, and head width H. Both directions only move numbers, and each is the inverse of the other.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from jaxformer.errors import ConversionError

Axis = str | tuple["Side", ...]
"""Axis of a pattern: a name, or the summands in brackets, each a product of axes."""
Side = tuple[Axis, ...]
Sizes = Mapping[str, int]
Shape = Sequence[int]


@dataclass(frozen=True)
class Block:
    """Block of numbers at regular distances in a tensor's memory."""

    first: int
    """Offset of the block's first number, in numbers."""
    strides: Mapping[str, int]
    """Name of an axis -> its stride, in numbers."""


@dataclass(frozen=True)
class Pattern:
    """Parsed layout."""

    torch: Side
    jax: Side
    words: tuple[str, str]
    """Text of both sides."""

    @property
    def packed(self) -> int:
        """Number of JAX tensors that the torch tensor may be cut into: the summands of the JAX side."""
        return max((len(axis) for axis in self.jax if not isinstance(axis, str)), default=1)

    def piece(self, number: int) -> Side:
        """Return the JAX side of one summand alone."""
        return tuple((axis[number],) if not isinstance(axis, str) and len(axis) > 1 else axis for axis in self.jax)

    def to_jax(self, array: np.ndarray, sizes: Sizes, shape: Shape | None = None, number: int | None = None) -> np.ndarray:
        """Convert torch's array to the JAX tensor, or to the summand of this number.

        `shape` is the JAX tensor's, which may determine a size that torch's shape does not. ValueError if the array does not
        fit.
        """
        pieces = [self.jax] if number is None else [self.piece(i) for i in range(self.packed)]
        wanted = [] if shape is None else [(pieces[number or 0], shape)]
        sizes = self._solved([(self.torch, array.shape)], wanted, sizes)
        _check(self.torch, self.words[0], array.shape, sizes)
        before = sum(len(_names(piece)) for piece in pieces[: number or 0])
        size, blocks = _blocks(pieces[number or 0], sizes)
        laid = np.empty(size, array.dtype)
        _copy(array, self._kept(sizes)[before : before + len(blocks)], laid, blocks, sizes)
        return laid.reshape([_size(axis, sizes) for axis in pieces[number or 0]])

    def to_torch(self, arrays: Sequence[np.ndarray], sizes: Sizes, like: np.ndarray | None = None) -> np.ndarray:
        """Convert the JAX tensor, or all of its summands, to torch's; dropped values are taken from `like`. ValueError for a
        misfit."""
        pieces = [self.jax] if len(arrays) == 1 else [self.piece(number) for number in range(self.packed)]
        shapes = [(piece, array.shape) for piece, array in zip(pieces, arrays, strict=True)]
        sizes = self._solved(shapes, [] if like is None else [(self.torch, like.shape)], sizes)
        for piece, shape in shapes:
            _check(piece, self.words[1], shape, sizes)
        shape = tuple(_size(axis, sizes) for axis in self.torch)
        laid, kept = np.zeros(shape, arrays[0].dtype), self._kept(sizes)
        if like is not None and like.shape == shape:
            laid[...] = like
        for piece, array in zip(pieces, arrays, strict=True):
            blocks = _blocks(piece, sizes)[1]
            _copy(array, blocks, laid, kept[: len(blocks)], sizes)
            kept = kept[len(blocks) :]
        return laid

    def _kept(self, sizes: Sizes) -> list[Block]:
        """Return the blocks of torch's tensor that the JAX tensor has."""
        return [block for block in _blocks(self.torch, sizes)[1] if not _dropped(block.strides)]

    def _solved(self, held: Sequence[tuple[Side, Shape]], more: Sequence[tuple[Side, Shape]], known: Sizes) -> dict[str, int]:
        """Return the size of every name, as the shapes of the arrays determine it first; ValueError if a size stays unknown."""
        names = [name for side in (self.torch, self.jax) for each in _names(side) for name in each]
        sizes = {name: int(name.lstrip("_")) for name in names if name.lstrip("_").isdigit()}
        axes = [pair for side, shape in (*held, *more) if len(side) == len(shape) for pair in zip(side, shape, strict=True)]
        for axis, size in axes:
            if isinstance(axis, str):
                sizes.setdefault(axis, size)
        sizes |= {name: known[name] for name in names if name in known and name not in sizes}
        while found := next((it for axis, size in axes if (it := _solve(axis, size, sizes))), None):
            sizes |= found
        sizes |= {name: 0 for name in names if name.startswith("_") and name not in sizes}
        if unknown := list(dict.fromkeys(name for name in names if name not in sizes)):
            given = ", ".join(f"{name!r}: ..." for name in unknown)
            if any(len(side) != len(shape) for side, shape in held):
                raise ValueError(f"shape {list(held[0][1])} is not {self.words[held[0][0] != self.torch]}")
            raise ValueError(f"no shape says {' and '.join(unknown)}; add sizes={{{given}}} to the family")
        return sizes


@cache
def read_pattern(layout: str) -> Pattern:
    """Parse the two sides of a layout, as 'f d 1 -> d f'; ConversionError for anything that is no layout."""
    words = [side.strip() for side in layout.split("->")]
    try:
        torch, jax = map(_read_side, words)
        if not torch or not jax:
            raise ValueError
        kept, found = ([each for each in _names(side) if not _dropped(each)] for side in (torch, jax))
        ones = [[sorted(name for name in each if name != "1") for each in blocks] for blocks in (kept, found)]
        repeated = any(count > 1 for each in (*ones[0], *ones[1]) for count in Counter(each).values())
        summed = sum(len(axis) > 1 for axis in jax if not isinstance(axis, str))
        if ones[0] != ones[1] or repeated or len(found) != len(_names(jax)) or summed > 1:
            raise ValueError
    except ValueError:
        raise ConversionError(
            f"layout = {layout!r} is none; give 'same', 'transposed', or torch's axes and ours, as 'f d 1 -> d f'"
        ) from None
    return Pattern(torch, jax, (words[0], words[1]))


def _read_side(words: str) -> Side:
    """Parse one side of a layout; ValueError if it is invalid."""
    tokens = re.findall(r"\w+|\S", words)
    side, rest = _read_product(tokens)
    if rest:
        raise ValueError
    return side


def _read_product(tokens: list[str]) -> tuple[Side, list[str]]:
    """Parse axes up to a +, a closing bracket or the end; return them with the remaining tokens."""
    side: list[Axis] = []
    while tokens and tokens[0] not in "+)":
        token, *tokens = tokens
        if token == "(":
            summands = []
            while not summands or tokens[0] == "+":
                summand, tokens = _read_product(tokens[bool(summands) :])
                summands.append(summand)
                if not summand or not tokens:
                    raise ValueError
            side.append(tuple(summands))
            tokens = tokens[1:]
        elif re.fullmatch(r"\w+", token):
            side.append(token)
        else:
            raise ValueError
    return tuple(side), tokens


def _names(side: Side) -> list[tuple[str, ...]]:
    """Return the names of each block, from left to right."""
    axes = ([(axis,)] if isinstance(axis, str) else [each for summand in axis for each in _names(summand)] for axis in side)
    return [tuple(name for part in parts for name in part) for parts in product(*axes)]


def _dropped(names: Sequence[str] | Mapping[str, int]) -> bool:
    return any(name.startswith("_") for name in names)


def _size(axis: Axis, sizes: Sizes) -> int:
    """Return the size of an axis; KeyError if one of its names has no size yet."""
    if isinstance(axis, str):
        return sizes[axis]
    return sum(math.prod(_size(each, sizes) for each in summand) for summand in axis)


def _solve(axis: Axis, size: int, sizes: Sizes) -> dict[str, int] | None:
    """Solve for the only unknown name of an axis of this size; None if there is no solution, or not one unknown."""
    unknown = {name for each in _names((axis,)) for name in each} - sizes.keys()
    if len(unknown) != 1:
        return None
    (name,) = unknown
    least = _size(axis, {**sizes, name: 0})
    step = _size(axis, {**sizes, name: 1}) - least
    return {name: (size - least) // step} if step and size >= least and not (size - least) % step else None


def _check(side: Side, words: str, shape: Shape, sizes: Sizes) -> None:
    """Raise ValueError if a shape does not fit a side."""
    if [_size(axis, sizes) for axis in side] != list(shape):
        inner = [name for axis in side if not isinstance(axis, str) for each in _names((axis,)) for name in each]
        said = [f"{name} = {sizes[name]}" for name in dict.fromkeys(inner) if not name.isdigit()]
        raise ValueError(f"shape {list(shape)} is not {words}{' with ' if said else ''}{', '.join(said)}")


def _blocks(side: Side, sizes: Sizes, stride: int = 1) -> tuple[int, list[Block]]:
    """Return a side's number of entries, and its blocks; `stride` is the distance between neighbours along its last axis."""
    total, found = 1, [Block(0, {})]
    for axis in reversed(side):
        length, own = 0, []
        for summand in ((axis,),) if isinstance(axis, str) else axis:
            if isinstance(axis, str):
                size, inner = sizes[axis], [Block(0, {} if axis == "1" else {axis: stride * total})]
            else:
                size, inner = _blocks(summand, sizes, stride * total)
            own += [Block(length * stride * total + block.first, block.strides) for block in inner]
            length += size
        found = [Block(one.first + other.first, {**one.strides, **other.strides}) for one in own for other in found]
        total *= length
    return total, found


def _copy(source: np.ndarray, read: Sequence[Block], target: np.ndarray, written: Sequence[Block], sizes: Sizes) -> None:
    """Copy block after block from `source` to `target`."""
    source, target = np.ascontiguousarray(source).reshape(-1), target.reshape(-1)
    for one, other in zip(read, written, strict=True):
        names = [name for name in other.strides if sizes[name] != 1]
        views = (
            np.lib.stride_tricks.as_strided(
                array[block.first :],
                [sizes[name] for name in names],
                [block.strides[name] * array.itemsize for name in names],
                writeable=array is target,
            )
            for array, block in ((target, other), (source, one))
        )
        into, numbers = views
        into[...] = numbers
