"""JAX's operations computed by numpy where that gives the same bits, and grouped matrix products, as for experts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
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
