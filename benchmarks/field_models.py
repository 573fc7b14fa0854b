"""Make the models of the field: both sides with the same weights, their inputs, and the functions that call them."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from benchmarks.field_kinds import VOCAB, Kind
from jaxformer.errors import InputError
from jaxformer.parity.probe import excite, probe

BATCH, LENGTH, TARGET = 5, 13, 11
RELEASES = {"transformers": "4.46", "diffusers": "0.30"}
"""Last releases of the packages that have Flax models."""
HOW = "see the first lines of benchmarks/field.py for the environment that it needs"


@dataclass(frozen=True)
class Port:
    """torch model and its port, with the arguments of `compare`."""

    torch_model: Any
    params: Any
    inputs: tuple[np.ndarray, ...]
    call_torch: Callable[..., Any]
    call_jax: Callable[..., Any]


def flax_release(name: str) -> Any:
    """Import the package of this name; InputError unless it is installed in a release that has Flax models."""
    try:
        package = importlib.import_module(name)
    except ImportError:
        raise InputError(f"{name} is not installed; {HOW}") from None
    if not package.__version__.startswith(RELEASES[name]):
        raise InputError(f"{name} is {package.__version__}, and its Flax models ended with {RELEASES[name]}; {HOW}")
    return package


def as_of_old() -> None:
    """Restore functions of jax that these models use and newer releases have removed."""
    clip = jnp.clip

    def named_clip(x: Any, low: Any = None, high: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
        return clip(x, low if a_min is None else a_min, high if a_max is None else a_max)

    lost: dict[Any, dict[str, Any]] = {jnp: {"clip": named_clip}}
    lost |= {kind: {"split": jnp.split} for kind in (type(jnp.zeros(())), Tracer)}
    for owner, functions in lost.items():
        for name, function in functions.items():
            setattr(owner, name, function)


def file_of(kind: Kind) -> str:
    """Return the name of the module with the port's source."""
    name = kind.name.partition("-")[0]
    return kind.file or f"transformers.models.{name}.modeling_flax_{name}"


def ported(kind: Kind, package: Any, seed: int = 0) -> Port:
    """Make both sides of a kind with excited weights, which the package's own converter takes to Flax."""
    original = getattr(package, kind.model)
    flax_class = getattr(importlib.import_module(file_of(kind)), f"Flax{kind.model}")
    make = _of_diffusers if kind.package == "diffusers" else _of_transformers
    torch_model, params, call_jax = make(kind, original, flax_class, seed)
    inputs, names = given(kind, seed)
    return Port(torch_model, params, inputs, partial(_call_torch, kind, names), partial(call_jax, names))


def _of_transformers(kind: Kind, original: Any, flax_class: Any, seed: int) -> tuple[Any, Any, Callable[..., Any]]:
    from flax.traverse_util import flatten_dict, unflatten_dict

    to_flax = importlib.import_module("transformers.modeling_flax_pytorch_utils").convert_pytorch_state_dict_to_flax
    config = original.config_class(**kind.sizes)
    config._attn_implementation = "eager"
    torch_model = excite(original(config).eval(), seed)
    for module in torch_model.modules():
        if "Embedding" in type(module).__name__ and hasattr(module, "weight"):
            module.padding_idx = None  # torch drops the gradient of that row and Flax does not, in every model
    jax_model = flax_class(config, seed=0)
    initial = flatten_dict(jax_model.params)
    converted = flatten_dict(to_flax(dict(torch_model.state_dict()), jax_model))
    params = unflatten_dict({name: converted.get(name, leaf) for name, leaf in initial.items()})

    def call_jax(names: tuple[str, ...], params: Any, *arrays: Any) -> Any:
        return jax_model(**dict(zip(names, arrays, strict=True)), params=params, return_dict=True)[kind.gives]

    return torch_model, params, call_jax


def _of_diffusers(kind: Kind, original: Any, flax_class: Any, seed: int) -> tuple[Any, Any, Callable[..., Any]]:
    to_flax = importlib.import_module("diffusers.models.modeling_flax_pytorch_utils").convert_pytorch_state_dict_to_flax
    torch_model, jax_model = excite(original(**kind.sizes).eval(), seed), flax_class(**kind.sizes)

    def call_jax(names: tuple[str, ...], params: Any, *arrays: Any) -> Any:
        return jax_model.apply({"params": params}, **dict(zip(names, arrays, strict=True)))[kind.gives]

    return torch_model, to_flax(dict(torch_model.state_dict()), jax_model), call_jax


def given(kind: Kind, seed: int = 0) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    """Make the inputs of a kind of model, and return them with their names on both sides."""
    ids, valid = probe(VOCAB, BATCH, LENGTH, seed=3 * seed, pad=1)
    target, _ = probe(VOCAB, BATCH, TARGET, seed=3 * seed + 1, pad=1)
    noise = np.random.default_rng(3 * seed + 2).standard_normal
    match kind.given:
        case "ids":
            return (ids,), ("input_ids",)
        case "masked ids":
            return (ids, valid.astype(np.int32)), ("input_ids", "attention_mask")
        case "pairs":
            return (ids, valid.astype(np.int32), target), ("input_ids", "attention_mask", "decoder_input_ids")
        case "pixels" if kind.package == "diffusers":
            return (noise((BATCH, 3, 24, 16)).astype(np.float32),), ("sample",)
        case "noise, steps and text":
            both = noise((BATCH, 4, 8, 12)).astype(np.float32), noise((BATCH, 7, 20)).astype(np.float32)
            return (both[0], np.arange(BATCH) * 99 + 3, both[1]), ("sample", "timesteps", "encoder_hidden_states")
        case "pixels":
            return (noise((BATCH, 3, 24, 24)).astype(np.float32),), ("pixel_values",)
        case "waves":
            return (noise((BATCH, 260)).astype(np.float32),), ("input_values",)
        case "speech":
            return (noise((BATCH, 6, 28)).astype(np.float32), target), ("input_features", "decoder_input_ids")
        case "ids and pixels":
            return (ids, noise((BATCH, 3, 24, 24)).astype(np.float32)), ("input_ids", "pixel_values")


def _call_torch(kind: Kind, names: tuple[str, ...], model: Any, *tensors: Any) -> Any:
    given = (tensor if tensor.is_floating_point() else tensor.long() for tensor in tensors)
    called = ("timestep" if name == "timesteps" else name for name in names)
    return model(**dict(zip(called, given, strict=True)), return_dict=True)[kind.gives]
