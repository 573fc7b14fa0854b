"""torch's gradients of weights that come from some of its calls alone, and go back to what was given or made before these."""

import copy
from collections.abc import Container
from typing import Any

import numpy as np

from jaxformer.parity.capture.call_records import arrays_in, replaced
from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.capture.torch_hooks import watch_torch
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.record.reference import Reference, tensors_of
from jaxformer.parity.record.torch_state import thawed


def gradients_from(
    reference: Reference, sending: Container[Site], outputs: Container[Site], inputs: Container[Site]
) -> dict[str, np.ndarray] | None:
    """The gradients of the recorded ones of the calls `sending`, by names of weights; none of them goes through what the calls
    `outputs` give, or through what the calls `inputs` are given. None where torch is not at hand."""
    import torch

    if (source := reference.source) is None:
        return None
    model, tensors = thawed(copy.deepcopy(source.module).double()).eval(), tensors_of(reference.inputs, torch.float64)
    cut = _Cut(reference, sending, outputs, inputs)
    with torch.enable_grad(), torch_float64(), watch_torch(model, cut):
        source.call(model, *tensors)
    leaves = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    total = cut.total + 0 * sum(leaf.sum() for leaf in leaves.values())
    found = torch.autograd.grad(total, list(leaves.values()))
    return dict(zip(leaves, map(host, found), strict=True))


class _Cut:
    """An observer: adds up what is sent back, and detaches what gradients do not go through."""

    def __init__(self, reference: Reference, sending: Container[Site], outputs: Container[Site], inputs: Container[Site]):
        self.calls, self.sending, self.outputs, self.inputs = reference.calls, sending, outputs, inputs
        self.total: Any = 0.0

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return detached(arguments) if site in self.inputs else arguments

    def leave(self, site: Site, output: Any) -> Any:
        import torch

        gradients = self.calls[site].output_gradients if site in self.sending else ()
        for array, gradient in zip(arrays_in(output), gradients, strict=False):
            if gradient is not None:
                self.total = self.total + (array * torch.from_numpy(gradient)).sum()
        return detached(output) if site in self.outputs else output


def detached(value: Any) -> Any:
    """The same numbers, through which no gradient goes."""
    arrays = arrays_in(value)
    return replaced(value, arrays, [array.detach() for array in arrays])
