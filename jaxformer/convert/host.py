"""Conversion of either framework's arrays to numpy, and of numpy arrays to jax."""

import math
import mmap
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def host(array: Any) -> np.ndarray:
    """Return an array as a numpy array of the same type, on the host; torch's bfloat16 too."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    array = array.detach().cpu()
    return array.float().numpy().astype(jnp.bfloat16) if str(array.dtype) == "torch.bfloat16" else array.numpy()


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """True if dtype, shape and bytes are equal: -0.0 differs from 0.0, and a NaN equals itself."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if ours.itemsize not in UNSIGNED:
        return ours.tobytes() == theirs.tobytes()
    return equal_numbers(*(array.view(UNSIGNED[array.itemsize]) for array in (ours, theirs)))


UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
TILE = 512
"""Edge of the tiles in which arrays are compared: whatever the order of their axes in memory, a tile stays in a cache."""


def equal_numbers(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays of one shape hold the same numbers; no copy is made."""
    if one.ndim < 2 or one.strides == other.strides:
        return np.array_equal(one, other)
    starts = product(*(range(0, one.shape[axis], TILE) for axis in (0, -1)))
    tiles = ((slice(row, row + TILE), ..., slice(column, column + TILE)) for row, column in starts)
    return all(np.array_equal(one[tile], other[tile]) for tile in tiles)


ALIGNMENT = 64
"""Alignment in bytes: on CPU, jax uses memory that begins at a multiple of it directly, and copies other memory."""


def to_device(arrays: list[np.ndarray], *, stacked: bool, held: Any = None) -> jax.Array:
    """Return a jax array of arrays of one shape and type, stacked along a new first axis; of the only one, if not `stacked`.

    If `held` is a jax array of the same bits, it is returned. Otherwise the numbers are copied once, whatever the order of
    their axes in memory. Pages of memory-mapped files are released after the copy.
    """
    each = (len(arrays), *arrays[0].shape)
    shape = each if stacked else each[1:]
    if isinstance(held, jax.Array) and all(map(same_bits, arrays, np.asarray(held).reshape(each))):
        return held
    memory = np.empty(math.prod(shape) * arrays[0].itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    own = memory[start : start + memory.size - ALIGNMENT].view(arrays[0].dtype).reshape(shape)
    for i, array in enumerate(arrays):
        own[i if stacked else ...] = array
        _release(array)
    return jax.device_put(own)


def _release(array: Any) -> None:
    """Release the pages read so far, if the array is part of a file that is memory-mapped read-only."""
    while array is not None and not (isinstance(array, np.memmap) and array.mode == "r"):
        array = getattr(array, "base", None)
    file = getattr(array, "_mmap", None)
    if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        file.madvise(mmap.MADV_DONTNEED)
