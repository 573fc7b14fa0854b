"""Arrays made without values: since jax 0.11 `jnp.empty` returns uninitialised memory, before that zeros.

A comparison fills them with unlikely numbers, so that a model that reads them always differs and is never equal by luck.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EMPTY = "empty"
"""Name of JAX's primitive for arrays without values."""
SINCE = 0, 11
"""First release of jax that leaves such arrays uninitialised."""
WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
USUAL: Mapping[str, Any] = {"f": 1234.5, "c": 1234.5, "i": 77, "u": 77, "b": True}
OTHER: Mapping[str, Any] = {"f": -987.25, "c": -987.25, "i": 31, "u": 31, "b": False}
"""Second set of fill values, by kind of dtype: a run with these instead of `USUAL` shows which arrays are read."""


def are_unset() -> bool:
    """True if this jax leaves such arrays uninitialised."""
    return jax.__version_info__[:2] >= SINCE


def dtype_of(how: Mapping[str, Any]) -> np.dtype | None:
    """Return the dtype of an array that the user's code makes without values, float64 for float32.

    None for arrays that jax makes so by itself, as in a compiled scan, and for dtypes that numpy does not have.
    """
    if not are_unset() or how.get("out_sharding") is not None or _is_lowered():
        return None
    try:
        dtype = np.dtype(how["dtype"])
    except TypeError:
        return None
    return WIDER.get(dtype, dtype) if dtype.kind in USUAL else None


def filled(how: Mapping[str, Any], fill: Mapping[str, Any] = USUAL) -> jax.Array | None:
    """Return a filled array in place of one that the user's code makes without values; None for other arrays."""
    dtype = dtype_of(how)
    return None if dtype is None else jnp.full(how["shape"], fill[dtype.kind], dtype)


def _is_lowered() -> bool:
    """True if jax is lowering an operation of its own to XLA at this point."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("jax.") and name.endswith(".mlir"):
            return True
        frame = frame.f_back
    return False
