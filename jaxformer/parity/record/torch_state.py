"""The state dict of a torch model, as arrays by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxformer.convert.rules import Family
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.probe.parameters import frozen_in

Arrays = Mapping[str, np.ndarray]
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class TorchState:
    """Every tensor once; further names of tied ones are in `tied`."""

    weights: Arrays
    """float32, by the first of their names."""
    buffers: Arrays = field(default_factory=dict)
    """Those in float32 or less, as float32, saved with the model or not, and other tensors that modules hold, such as GPT-J's
    sinusoids; what is in float64 is exact in every run."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Every further name of a weight -> its first."""
    frozen: frozenset[str] = frozenset()
    """Weights that torch does not train, `requires_grad = False`."""


def without_ignored(state: TorchState, rules: Family) -> TorchState:
    """What rules ignore is not a weight: it is a buffer, which the JAX model may compute."""
    ignored = {name: array for name, array in state.weights.items() if rules.why_ignored(name) is not None}
    weights = {name: array for name, array in state.weights.items() if name not in ignored}
    return replace(state, weights=weights, buffers={**state.buffers, **ignored})


def torch_state(model: Any) -> TorchState:
    """Of a torch module."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    names = model.named_parameters(remove_duplicate=False)
    held = {**dict(model.named_buffers()), **_plain_tensors(model)}
    buffers = {name: b for name, b in held.items() if b.is_floating_point() and b.element_size() <= FLOAT32_BYTES}
    return TorchState(
        {name: host(parameter) for parameter, name in first.items()},
        {name: host(buffer.float()) for name, buffer in buffers.items()},
        {name: first[parameter] for name, parameter in names if name != first[parameter]},
        frozen_in(model),
    )


def _plain_tensors(model: Any) -> dict[str, Any]:
    """What modules hold as an attribute, neither a parameter nor a buffer."""
    import torch

    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and not value.requires_grad
    }


def thawed(model: Any) -> Any:
    """The model, in place, to be trained: where all of it is frozen, nothing is."""
    return model if any(parameter.requires_grad for parameter in model.parameters()) else model.requires_grad_()
