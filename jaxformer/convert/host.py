"""Arrays of either framework as numpy arrays, and numpy arrays as those of jax."""

import math
import mmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def host(array: Any) -> np.ndarray:
    """On the host, of the same type; torch's bfloat16 too."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    array = array.detach().cpu()
    return array.float().numpy().astype(jnp.bfloat16) if str(array.dtype) == "torch.bfloat16" else array.numpy()


ALIGNMENT = 64
"""Bytes. On CPU jax takes memory that begins at a multiple of this as it is; other memory it copies."""


def to_device(arrays: list[np.ndarray], *, stacked: bool) -> jax.Array:
    """A jax array of arrays of one shape and type along a new first axis; of the only one, if not `stacked`.

    The numbers are copied once, in whatever order of axes they lie. Of files that are mapped, no page is held longer.
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
    """Let go of the pages that were read of the file, where the array is a part of one that is mapped to be read alone."""
    while array is not None and not (isinstance(array, np.memmap) and array.mode == "r"):
        array = getattr(array, "base", None)
    file = getattr(array, "_mmap", None)
    if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        file.madvise(mmap.MADV_DONTNEED)
