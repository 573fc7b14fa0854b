"""A model that can be written, and read again: every array is there, of its shape, of a float type, and finite."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxformer.errors import InputError, type_of
from jaxformer.models import Model, abstract
from jaxformer.pytree import path_name

FLOATS = ("float32", "bfloat16", "float16", "float64")
"""The types that are written and read."""


def whole_model(model: Model) -> Model:
    """The same model, its numbers in the machine's byte order; InputError names the first leaf that `load` would refuse."""
    wanted, found = _leaves(abstract(model.config)), _leaves(model)
    kind = type(model).__name__
    if odd := next((name for name in found if name not in wanted), None):
        raise InputError(f"{odd} is {_described(found[odd])}, and a {kind} of this configuration has none; take it out")
    if odd := next((name for name in wanted if name not in found), None):
        raise InputError(f"{odd} is missing, and a {kind} of this configuration has one; give a model that has all its weights")
    for name, leaf in found.items():
        if fault := _fault(leaf, wanted[name].shape):
            raise InputError(f"{name} {fault}")
    types = sorted({leaf.dtype.name for leaf in found.values()})
    if len(types) > 1:
        raise InputError(f"the model holds {' and '.join(types)}; cast it to one type before it is saved")
    return jax.tree.map(_native, model)


def _leaves(model: Model) -> dict[str, Any]:
    """Every leaf by its name, and what is None too."""
    return {path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(model, is_leaf=lambda leaf: leaf is None)}


def _fault(leaf: Any, shape: tuple[int, ...]) -> str:
    """Why a leaf would not be read again, and what to do; empty where it would."""
    if isinstance(leaf, Tracer):
        return "is traced and has no numbers yet; save the model outside of jax.jit, jax.grad and jax.vmap"
    if not isinstance(leaf, jax.Array | np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        return f"is {_described(leaf)}; give a jax or numpy array of shape {list(shape)}"
    dtype = leaf.dtype.name
    if dtype not in FLOATS:
        return f"is of type {dtype}; cast the model to one of {', '.join(FLOATS)}"
    if jax.dtypes.canonicalize_dtype(dtype).name != dtype:
        return f"is of type {dtype}, which load refuses here; cast the model to float32, or save under jax.enable_x64(True)"
    if leaf.shape != shape:
        stack = "save one model of the stack: jax.tree.map(lambda leaf: leaf[0], model)"
        do = stack if leaf.shape[1:] == shape else "give a model of that shape"
        return f"has shape {list(leaf.shape)}, and the model's configuration asks for {list(shape)}; {do}"
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return "was deleted, or donated to a jitted function; save what the function returned, or save before it is called"
    return "" if np.isfinite(leaf).all() else "holds NaN or infinity, and load would refuse the model; save one that is finite"


def _described(leaf: Any) -> str:
    """A leaf in a few words."""
    return "None" if leaf is None else type_of(leaf)


def _native(leaf: Any) -> Any:
    return leaf.astype(leaf.dtype.newbyteorder("="), copy=False) if isinstance(leaf, np.ndarray) else leaf
