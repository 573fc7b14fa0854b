"""Validation of the two models and their inputs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import jax
import numpy as np
from flax import linen

from jaxformer.convert.registry import find_family
from jaxformer.convert.rules import Family
from jaxformer.errors import InputError, ParityError, type_of
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.pairing.buffers import typed_constants
from jaxformer.parity.probe import is_torch
from jaxformer.parity.runs.load_weights import has_shapes_alone
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import Call, apply
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.pytree import named_leaves, named_weights
from jaxformer.runtime.packages import extra_package
from jaxformer.validation.fields import check_choice, check_function, check_kind, check_number

Mode = Literal["eval", "train"]
"""Mode of both models: inference or training."""
SINGLE = 4
"""Size of a float32 in bytes."""


LONGEST = 7 * 24 * 3600
"""Largest number of seconds that a search may take."""


def checked_seconds(seconds: Any) -> float:
    """Return `search_seconds` as a float, also from a numpy number; ConfigError unless it is between 0 and a week."""
    number = seconds.item() if isinstance(seconds, np.generic) else seconds
    check_number("search_seconds", number, least=0, most=LONGEST)
    return float(number)


def checked_torch(torch_model: Any, inputs: Any, call_torch: Call) -> tuple[np.ndarray, ...]:
    """Return the inputs as arrays; InputError if the model is not a torch module, or an input is not an array."""
    with extra_package():
        from torch import nn

    if not isinstance(torch_model, nn.Module):
        raise InputError(f"the torch model is {type_of(torch_model)}; give a torch.nn.Module, or a JAX model to compare with")
    check_function("call_torch", call_torch, "a function of the model and its inputs")
    for name, tensor in (*torch_model.named_parameters(), *torch_model.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                f"the torch model holds meta tensors, which have no values, first {name}; give it values: "
                "model.to_empty(device='cpu'), then load_state_dict"
            )
    for name, tensor in torch_model.named_parameters():
        if str(tensor.dtype) != "torch.float32":
            held = f"the torch model holds {str(tensor.dtype)[6:]}, first {name}"
            if tensor.is_complex():
                raise InputError(f"{held}; complex parameters are not compared: hold two of floats, real and imaginary")
            raise InputError(f"{held}; give it in float32: model.float()")
    return checked_inputs(inputs)


def checked_inputs(inputs: Any) -> tuple[np.ndarray, ...]:
    """Return the inputs as arrays; InputError if one is not an array."""
    if not isinstance(inputs, (tuple, list)):
        named = ", and their names in call_torch and call_jax" if isinstance(inputs, Mapping) else ", (x,) for one"
        raise InputError(f"inputs is {type_of(inputs)}; give a tuple of arrays{named}")
    for i, given in enumerate(inputs):
        if given is None:
            raise InputError(f"input {i} is None; leave it out, and give it in call_torch and call_jax")
        if isinstance(given, Mapping):
            raise InputError(f"input {i} is {type_of(given)}; give its arrays, and their names in call_torch and call_jax")
    arrays = tuple(np.asarray(host(array)) for array in inputs)
    for i, array in enumerate(arrays):
        if array.dtype.kind not in "fiub" or not array.ndim:
            held = f" of {array.dtype} with shape {list(array.shape)}" if isinstance(inputs[i], np.ndarray | jax.Array) else ""
            raise InputError(f"input {i} is {type_of(inputs[i])}{held}; give arrays of real numbers with at least one axis")
        if not array.size:
            raise InputError(f"input {i} is empty: its shape is {list(array.shape)}; give it some rows")
    return arrays


def checked_reference(model: Any, inputs: Any, call: Call) -> tuple[np.ndarray, ...]:
    """Return the inputs of a reference, torch's or JAX's, as arrays; InputError if it cannot be one."""
    if not is_jax(model):
        return checked_torch(model, inputs, call)
    checked_jax(open_modules(model).tree, None, call, "call_torch")
    return checked_inputs(inputs)


def check_inference(mode: Any, training: Any, generate: Any) -> None:
    """Raise InputError if a comparison of two JAX models is asked for what needs torch."""
    check_choice("mode", mode, get_args(Mode))
    asked = {"mode": mode == "train", "training": training is not None, "generate": generate is not None}
    for name, wanted in asked.items():
        if wanted:
            raise InputError(f"{name} is compared with torch alone; leave it out where both sides are JAX")


def check_of_statistics(checks: tuple[str, ...], tier: str, reduce_to: Any) -> None:
    """Raise InputError if a comparison with statistics is asked for what needs arrays."""
    asked = {
        f"checks = {checks}": not {"weights", "forward"} & {*checks},
        f"tier = {tier!r}": tier == "C",
        "reduce_to": reduce_to is not None,
    }
    for name in (name for name, wanted in asked.items() if wanted):
        raise InputError(f"{name} needs torch's arrays, and the reference holds statistics; keep tensors")


def check_later(training: Any, generate: Any) -> None:
    """Raise InputError if `training` or `generate` has the wrong form."""
    check_kind("training", training, (TrainingSpec, type(None)), "a TrainingSpec")
    if generate is not None:
        wanted = "two functions, (torch_generate, jax_generate)"
        check_kind("generate", generate, (tuple, list), wanted)
        if len(generate) != 2:
            raise InputError(f"generate holds {len(generate)} values; give {wanted}")
        for function in generate:
            check_function("generate", function, wanted)


def is_jax(model: Any) -> bool:
    """True for an NNX module, a pytree of modules, and a tree that holds arrays."""
    return not is_torch(model) and any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(model))


def checked_jax(jax_model: Any, rules: Family | str | None, call_jax: Call, name: str = "call_jax") -> Family | None:
    """Return the family of the rules, if any; InputError for a model that is not a JAX model, or invalid rules.

    `name` is that of the argument `call_jax`.
    """
    check_function(name, call_jax, "a function of the model and its inputs")
    if is_torch(jax_model) or isinstance(jax_model, linen.Module):
        kind = "torch" if is_torch(jax_model) else "Linen"
        raise InputError(f"the JAX model is a {kind} module; give an NNX module, or parameters and {name}(params, *inputs)")
    if isinstance(jax_model, Mapping) and call_jax is apply:
        raise InputError(f"the JAX model is a tree of parameters; give {name}(params, *inputs) too")
    if jax_model is None or not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(jax_model)):
        found = f"the JAX model is {type_of(jax_model)}, which is not a tree of arrays"
        raise InputError(f"{found}; give an NNX module, or parameters and {name}(params, *inputs)")
    for leaf_name, leaf in named_leaves(jax_model).items():
        if type(leaf).__module__.split(".")[0] == "torch":
            raise InputError(
                f"the JAX model holds torch's tensors, first {leaf_name}; give arrays: {leaf_name}.detach().numpy()"
            )
    constants = typed_constants(jax_model)
    for leaf_name, leaf in named_weights(jax_model).items():
        if leaf.dtype.itemsize < SINGLE and leaf_name not in constants:
            raise InputError(
                f"the JAX model holds {leaf.dtype}, first {leaf_name}; give it in float32: it is compared in float64"
            )
    if rules is not None:
        return find_family(rules, "rules", model=jax_model)
    if has_shapes_alone(jax_model):
        raise InputError("the JAX model has shapes alone, and no values to match; give rules")
    return None


@contextmanager
def evaluating(model: Any, mode: Mode = "eval") -> Iterator[None]:
    """Context manager that puts a torch model in inference mode and restores its modes and buffers afterwards.

    In `mode` "train" the call itself sets training mode. Raises ParityError for a model that cannot be compared.
    """
    for path, module in model.named_modules():
        refuse(path, module, mode)
    modes = {module: module.training for module in model.modules()}
    buffers = {module: {name: (b, None if b is None else b.clone()) for name, b in module._buffers.items()} for module in modes}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for module, named in buffers.items():
            module._buffers.clear()
            for name, (buffer, before) in named.items():
                if buffer is not None and not ((buffer == before) | (buffer != buffer) & (before != before)).all():
                    buffer.copy_(before)  # an expanded view cannot be written, not even by the model
                module._buffers[name] = buffer


def refuse(path: str, module: Any, mode: Mode) -> None:
    """Raise ParityError for a torch module that drops units, or whose calls cannot be observed."""
    import torch

    where = path or "the model itself"
    drops = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.AlphaDropout)
    if isinstance(module, torch.jit.ScriptModule):
        raise ParityError(
            f"{where} is made by torch.jit, so nothing can be seen inside; give the nn.Module that it was made of"
        )
    if mode == "eval" and isinstance(module, drops) and module.training and module.p > 0:
        raise ParityError(
            f"the torch model is in training mode and {where} drops units (p = {module.p}); call .eval() on it, or "
            "compare with mode='train'"
        )
