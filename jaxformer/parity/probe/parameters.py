"""Excited parameters: random values that hide no bug.

A model initialised the usual way hides dropped biases and gains at any tolerance: its biases are 0 and its gains 1.
"""

import copy
import math
import sys
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.errors import InputError, type_of
from jaxformer.pytree import STACKED, path_name
from jaxformer.validation.fields import check_seed

Kind = Literal["gain", "bias", "table", "matrix"]


def excite(model: Any, seed: int) -> Any:
    """Return a copy with gains 1 + 0.3 n, biases 0.3 n, embeddings 0.5 n and matrices n / sqrt(fan_in), where n is standard
    normal.

    `model` is a torch module, a Flax NNX module, the variables or the parameters of a Flax Linen module, or another pytree of
    arrays. The kind of a parameter follows from its name, in torch also from its module; otherwise a parameter with one axis is
    a bias. All values are float32 numbers, in the parameter's own dtype. Tied weights stay tied. torch's running statistics
    become means 0.3 n and variances exp(0.3 n). Everything that is not a float parameter (buffers, random keys, integers)
    stays, and so does a table, such as of sinusoids, that torch does not train while it trains other parameters: a port may
    compute it. InputError if the model holds no arrays.
    """
    check_seed(seed)
    rng = np.random.default_rng(seed)
    if is_torch(model):
        return _excite_torch(model, rng)
    if isinstance(model, Mapping) and "params" in model:
        return {**model, "params": excite(model["params"], seed)}
    leaves = jax.tree.leaves(model)
    if model is None or (leaves and not any(hasattr(leaf, "dtype") for leaf in leaves)):
        raise InputError(f"{type_of(model)} holds no arrays to draw; give a torch or NNX module, or a tree of arrays")
    done: dict[int, Any] = {}

    def fill(path: Any, leaf: Any) -> Any:
        variable, name = isinstance(leaf, nnx.Variable), path_name(path)
        if variable and id(leaf) in done:
            return done[id(leaf)]
        if (variable and not isinstance(leaf, nnx.Param)) or not jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating):
            return leaf
        value = _value(kind_of(name, leaf.ndim), rng.standard_normal(leaf.shape), _fan_in(name, leaf.shape))
        done[id(leaf)] = jax.tree.map(lambda held: jnp.asarray(value, held.dtype), leaf)
        return done[id(leaf)]

    return jax.tree_util.tree_map_with_path(fill, model, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def is_torch(model: Any) -> bool:
    """True if the model is a torch module; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _excite_torch(model: Any, rng: np.random.Generator) -> Any:
    import torch

    model, frozen = copy.deepcopy(model), frozen_in(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                owner, shape = model.get_submodule(name.rpartition(".")[0]), tuple(parameter.shape)
                kind = _torch_kind(name, owner, shape)
                if kind == "table" and name in frozen:
                    continue
                value = _value(kind, rng.standard_normal(shape), _torch_fan_in(owner, shape))
                parameter.copy_(torch.from_numpy(value))
        for name, buffer in model.named_buffers():
            if (last := name.rpartition(".")[2]) in ("running_mean", "running_var"):
                noise = 0.3 * torch.from_numpy(rng.standard_normal(tuple(buffer.shape)))
                buffer.copy_(noise.exp() if last == "running_var" else noise)
    return model


def _value(kind: Kind, noise: np.ndarray | float, fan_in: int) -> np.ndarray:
    value = {"gain": 1 + 0.3 * noise, "bias": 0.3 * noise, "table": 0.5 * noise, "matrix": noise / math.sqrt(fan_in)}[kind]
    return np.asarray(value, np.float32)


def kind_of(name: str, rank: int) -> Kind:
    """Return the kind of a parameter by the last part of its name, else by its number of axes."""
    last = name.rpartition(".")[2].lower()
    if "bias" in last or last in ("beta", "b"):
        return "bias"
    if any(word in last for word in ("scale", "gain", "gamma")):
        return "gain"
    if "embed" in last or last == "table":
        return "table"
    return "matrix" if rank > 1 else "gain" if "weight" in last else "bias"


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    """Return the fan-in of a Flax parameter: the product of all axes but the last; projections to heads `D N H` and stacked
    layers count a single axis."""
    if len(shape) < 2:
        return 1
    if STACKED in name or len(shape) == 2:
        return shape[-2]
    to_heads = any(part in ("query", "key", "value") for part in name.split(".")[-2:])
    return shape[0] if to_heads else math.prod(shape[:-1])


def _torch_kind(name: str, owner: Any, shape: tuple[int, ...]) -> Kind:
    """Return the kind of a torch parameter by the class of its module; by its name if the class is not known."""
    found, known = kind_of(name, len(shape)), type(owner).__name__
    if found != "bias" and known.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d")):
        return "gain"
    return "table" if found == "matrix" and "Embedding" in known else found


def _torch_fan_in(owner: Any, shape: tuple[int, ...]) -> int:
    """Return the fan-in of a torch parameter: the last axis; the first for transformers' Conv1D, which stores (in, out). A
    convolution sums over its window too."""
    if len(shape) < 2:
        return 1
    if type(owner).__name__ == "Conv1D":
        return shape[0]
    if type(owner).__name__.startswith("Conv"):
        return math.prod(shape) // shape[1 if getattr(owner, "transposed", False) else 0]
    return shape[-1]


def frozen_in(model: Any) -> frozenset[str]:
    """Return the names of the parameters that are not trained; empty if none is trained, as for inference."""
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    return frozenset(name for name, it_is in trained.items() if not it_is) if any(trained.values()) else frozenset()
