"""Large arrays in a temporary file, which is read where an array is used: what waits for its comparison takes no memory."""

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

K = TypeVar("K")
LARGE = 2**27
"""Number of bytes from which arrays are kept in a file: those of a small model stay in memory."""


def kept(trees: Mapping[K, PyTree]) -> Mapping[K, PyTree]:
    """Return the same trees of numpy arrays, in a temporary file if they are large; in memory if the disk has no room."""
    if sum(array.nbytes for array in jax.tree.leaves([*trees.values()])) < LARGE:
        return trees
    try:
        return OnDisk(trees)
    except OSError:
        return trees


def kept_tree(tree: PyTree) -> Callable[[], PyTree]:
    """Return a function that gives the tree, with numpy arrays in place of jax's, kept as `kept` does."""
    held = kept({"": jax.tree.map(np.asarray, tree)})
    return lambda: held[""]


@dataclass(frozen=True)
class Place:
    """Place of an array in a file."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, file: IO[bytes]) -> np.ndarray:
        """Map the array, read-only."""
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(file, self.dtype, "r", self.offset, self.shape).view(np.ndarray)


class OnDisk(Mapping[K, PyTree]):
    """Trees of numpy arrays by key, in a temporary file, which is removed with the mapping.

    Each access maps the arrays anew, read-only, so that what was read of them is freed once they are no longer used.
    """

    def __init__(self, trees: Mapping[K, PyTree]):
        self.file = tempfile.TemporaryFile(prefix="jaxformer-")  # noqa: SIM115  # closed with the mapping
        weakref.finalize(self, self.file.close)
        self.places = {key: jax.tree.map(self._write, tree) for key, tree in trees.items()}
        self.file.flush()

    def _write(self, array: np.ndarray) -> Place:
        place = Place(self.file.tell(), array.dtype, array.shape)
        self.file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return place

    def __getitem__(self, key: K) -> PyTree:
        return jax.tree.map(lambda place: place.read(self.file), self.places[key])

    def __iter__(self) -> Iterator[K]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
