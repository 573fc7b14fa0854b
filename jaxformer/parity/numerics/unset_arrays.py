"""Arrays that are made without values: since jax 0.11 `jnp.empty` gives memory as it was left, and before that zeros.

A comparison fills them with numbers that no code counts on. So a model that reads them differs each time, and by luck never.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EMPTY = "empty"
"""JAX's operation."""
SINCE = 0, 11
"""The first release of jax in which it leaves arrays unset."""
WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
USUAL: Mapping[str, Any] = {"f": 1234.5, "c": 1234.5, "i": 77, "u": 77, "b": True}
OTHER: Mapping[str, Any] = {"f": -987.25, "c": -987.25, "i": 31, "u": 31, "b": False}
"""By the kinds of types: what a second run has instead, to see what is read."""


def are_unset() -> bool:
    """Whether this jax leaves arrays unset."""
    return jax.__version_info__[:2] >= SINCE


def dtype_of(how: Mapping[str, Any]) -> np.dtype | None:
    """The type of an array that the user's code makes without values, float64 for float32; None for what jax makes so by
    itself, as a compiled scan does, and for types that numpy has not."""
    if not are_unset() or how.get("out_sharding") is not None or _is_lowered():
        return None
    try:
        dtype = np.dtype(how["dtype"])
    except TypeError:
        return None
    return WIDER.get(dtype, dtype) if dtype.kind in USUAL else None


def filled(how: Mapping[str, Any], fill: Mapping[str, Any] = USUAL) -> jax.Array | None:
    """An array in place of such a one; None for others."""
    dtype = dtype_of(how)
    return None if dtype is None else jnp.full(how["shape"], fill[dtype.kind], dtype)


def _is_lowered() -> bool:
    """Whether jax turns an operation of its own into XLA's here."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("jax.") and name.endswith(".mlir"):
            return True
        frame = frame.f_back
    return False
