"""Conversion of either framework's arrays to numpy, and of numpy arrays to jax."""

import math
import mmap
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


ALIGNMENT = 64
"""Alignment in bytes: on CPU, jax uses memory that begins at a multiple of it directly, and copies other memory."""


def to_device(arrays: list[np.ndarray], *, stacked: bool) -> jax.Array:
    """Return a jax array of arrays of one shape and type, stacked along a new first axis; of the only one, if not `stacked`.

    The numbers are copied once, whatever the order of their axes in memory. Pages of memory-mapped files are released after the
    copy.
    """
    shape = (len(arrays), *arrays[0].shape) if stacked else arrays[0].shape
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
