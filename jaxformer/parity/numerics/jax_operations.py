"""JAX's operations as a comparison runs them: computed by numpy where that gives the same bits; grouped matrix products, as for
experts; and arrays made without values.

Since jax 0.11 `jnp.empty` returns uninitialised memory, before that zeros. A comparison fills such arrays with unlikely
numbers, so that a model that reads them always differs and is never equal by luck."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, primitives

EXACT: Mapping[Primitive, Callable[..., Any]] = {
    primitives.add_p: np.add,
    primitives.sub_p: np.subtract,
    primitives.mul_p: np.multiply,
    primitives.neg_p: np.negative,
    primitives.eq_p: np.equal,
    primitives.ne_p: np.not_equal,
    primitives.lt_p: np.less,
    primitives.le_p: np.less_equal,
    primitives.gt_p: np.greater,
    primitives.ge_p: np.greater_equal,
    primitives.is_finite_p: np.isfinite,
}
"""Operations on arrays of one shape and dtype that round at most once."""
FLOATS = {primitives.div_p: np.divide, primitives.sqrt_p: np.sqrt}
"""Operations that round at most once for real floats only."""
NATIVE = frozenset("biuf")
"""Kinds of numpy's own dtypes."""


def on_host(operation: Primitive, args: tuple[Any, ...], how: Mapping[str, Any]) -> jax.Array | None:
    """Return an operation's result computed by numpy; None if numpy would not give the same bits."""
    if how.get("weak_type") or how.get("sharding") is not None or any(isinstance(arg, int | float) for arg in args):
        return None
    if any(getattr(arg, "weak_type", False) or getattr(arg.dtype, "kind", "") not in NATIVE for arg in args):
        return None
    with np.errstate(all="ignore"):
        found = _computed(operation, [np.asarray(arg) for arg in args], how)
    return None if found is None or found.dtype.kind not in NATIVE else jax.device_put(found)


def _computed(operation: Primitive, args: list[np.ndarray], how: Mapping[str, Any]) -> np.ndarray | None:
    if operation in EXACT:
        return np.asarray(EXACT[operation](*args))
    if operation in FLOATS and all(arg.dtype.kind == "f" for arg in args) and how.get("accuracy") is None:
        return np.asarray(FLOATS[operation](*args))
    if operation is primitives.select_n_p and args[0].dtype == np.bool_ and args[0].shape == args[1].shape:
        return np.where(args[0], args[2], args[1])
    if operation is primitives.concatenate_p:
        return np.concatenate(args, how["dimension"])
    if operation is primitives.iota_p:
        along = np.arange(how["shape"][how["dimension"]]).astype(how["dtype"])
        return np.array(_spread(along, how["shape"], (how["dimension"],)))
    if operation is primitives.broadcast_in_dim_p:
        return np.array(_spread(args[0], how["shape"], how["broadcast_dimensions"]))
    casts = operation is primitives.convert_element_type_p and np.can_cast(args[0].dtype, how["new_dtype"], "same_kind")
    return args[0].astype(how["new_dtype"]) if casts else None


def _spread(array: np.ndarray, shape: Sequence[Any], axes: Sequence[Any]) -> np.ndarray:
    """Broadcast an array to a shape; `axes` are its axes in that shape."""
    sizes = [array.shape[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape))]
    return np.broadcast_to(array.reshape(sizes), shape)


def grouped_product(a: Any, b: Any, offsets: Any = None) -> Any:
    """Return what `torch.nn.functional.grouped_mm` gives; rows or columns after the last group are 0.

    `offsets` are the ends of the groups: along a's rows if b has a matrix per group (M K, G K N -> M N), along b's columns if a
    has one (G M K, K N -> M N), and along the contracted axis if neither has (M K, K N -> G M N).
    """
    import torch

    if offsets is None:
        return a @ b
    ends = offsets.tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.ndim == b.ndim == 2:
        return torch.stack([a[:, part] @ b[part] for part in parts])
    rows, columns = a.shape[-2], b.shape[-1]
    out = a.new_zeros(rows, columns)
    for i, part in enumerate(parts):
        if a.ndim == 2:
            out[part] = a[part] @ b[i]
        else:
            out[:, part] = a[i] @ b[:, part]
    return out


def is_grouped_product(operation: Any, args: tuple[Any, ...]) -> bool:
    """True if a torch operation is a grouped matrix product in float64, without a bias."""
    named = getattr(operation, "__name__", "").startswith("_grouped_mm.")
    return named and 0 < len(args) <= 3 and str(args[0].dtype) == "torch.float64"


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
