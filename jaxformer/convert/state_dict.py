"""Conversion of a torch state to a JAX model, and back, by the name of a family.

model = from_torch(torch_model, abstract(config), "gpt2")
torch_model.load_state_dict(to_torch(model, "gpt2", like=torch_model))
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert import rules
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.family import Family
from jaxformer.convert.registry import FAMILIES, find_family
from jaxformer.errors import ConversionError, InputError, type_of
from jaxformer.runtime.packages import extra_package

MOST_NAMED = 3
"""Number of families that a message names."""


def from_torch(source: Any, model: PyTree, family: Family | str | None = None) -> PyTree:
    """Return the JAX model with torch's weights, bit for bit; each torch tensor is used exactly once.

    `source` is a torch module or its `state_dict()`. `model` gives the shapes: an instance, or `abstract(config)`. `family` is
    a Family or its name; None is the layout of `torch_ref` and of weights.safetensors. Raises ConversionError for tensors that
    are missing, unused, or of another shape or type.
    """
    _check_model(model)
    state = _state(source, "source")
    try:
        return rules.to_jax(state, model, TWIN if family is None else find_family(family, model=model))
    except ConversionError as error:
        if fitting := _fitting(state, model):
            raise ConversionError(f"{error}; families that fit: {', '.join(map(repr, fitting))}; name one") from None
        raise _with_hint(error, family) from None


def to_torch(model: PyTree, family: Family | str | None = None, *, like: Any = None) -> dict[str, Any]:
    """Return the state dict of a JAX model as torch tensors, bit for bit; tied tensors are included under all of their names.

    `like`, a torch module or its `state_dict()`, gives torch's names: the result then fits `load_state_dict(strict=True)`.
    `family` is as in `from_torch`. Raises ConversionError if the two do not fit.
    """
    _check_model(model)
    state = None if like is None else _state(like, "like")
    try:
        arrays = rules.to_torch(model, TWIN if family is None else find_family(family, model=model), like=state)
    except ConversionError as error:
        raise _with_hint(error, family) from None
    return {name: to_tensor(array) for name, array in arrays.items()}


def _fitting(state: Mapping[str, Any], model: PyTree) -> list[str]:
    """Return the names of the first families, at most three, with which the state fits."""
    found: list[str] = []
    for name, family in FAMILIES.items():
        with suppress(ConversionError):
            rules.to_jax(state, model, family)
            found.append(name)
        if len(found) == MOST_NAMED:
            break
    return found


def _check_model(model: Any) -> None:
    """Raise InputError for None, a torch module, or a tree with a leaf that is no array, as a configuration."""
    if model is None or _is_torch(model) or not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(model)):
        raise InputError(f"the model is {type_of(model)}; give a JAX model, or jaxformer.abstract(config)")


def _is_torch(model: Any) -> bool:
    return hasattr(model, "state_dict") and hasattr(model, "named_parameters")


def _state(source: Any, name: str) -> Mapping[str, Any]:
    state = source.state_dict() if _is_torch(source) else source
    if not isinstance(state, Mapping):
        raise InputError(f"{name} is {type_of(source)}; give a torch module or its state_dict()")
    if odd := [key for key in state if not isinstance(key, str)]:
        raise InputError(f"{name} has the key {odd[0]!r:.40}, and names of tensors are strings; give a state_dict()")
    return state


def _with_hint(error: ConversionError, family: Family | str | None) -> ConversionError:
    """Add a hint to name a family, if none was given."""
    if family is not None:
        return error
    return ConversionError(f"{error}; if torch has another layout, name its family: {', '.join(FAMILIES)}")


def to_tensor(array: np.ndarray) -> Any:
    """Return an array as a torch tensor of the same type, also for bfloat16, whose numpy type torch does not know."""
    with extra_package():
        import torch

    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
