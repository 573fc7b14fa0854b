"""torch's gradients from some of its calls alone, back to arrays that were given or computed before these calls."""

import copy
from collections.abc import Container
from typing import Any

import numpy as np

from jaxformer.parity.numerics.axis_order import part_of
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.trace.call_records import Trace, arrays_in, replaced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.recorder import thawed
from jaxformer.parity.trace.reference import Reference, tensors_of
from jaxformer.parity.trace.torch_hooks import watch_torch


def gradients_from(
    reference: Reference, sending: Container[ArrayKey], cut: Container[ArrayKey]
) -> dict[str, np.ndarray] | None:
    """Return the gradients of weights by name, if the arrays `sending` have the recorded gradients, and none passes the arrays
    `cut`.

    None if torch's model is not available.
    """
    import torch

    if (source := reference.source) is None:
        return None
    model, tensors = thawed(copy.deepcopy(source.module).double()).eval(), tensors_of(reference.inputs, torch.float64)
    observer = Cut(reference.calls, sending, cut)
    with torch.enable_grad(), torch_float64(), watch_torch(model, observer):
        output = source.call(model, *tensors)
    observer.leave(CALL, output)
    leaves = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(observer.total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, map(host, found), strict=True))


class Cut:
    """Observer that sums what is sent back, and detaches the arrays that gradients do not pass."""

    def __init__(self, calls: Trace, sending: Container[ArrayKey], cut: Container[ArrayKey]):
        import torch

        self.calls, self.sending, self.cut = calls, sending, cut
        self.total: Any = torch.zeros((), dtype=torch.float64, requires_grad=True)
        """Scalar whose gradient is what is sent back; integers and running statistics send nothing."""
        self.leaves: dict[ArrayKey, Any] = {}
        """Float tensors that replace the arrays that are cut."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._seen(site, "inputs", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._seen(site, "output", output)

    def _seen(self, site: Site, part: str, value: Any) -> Any:
        import torch

        arrays, record = arrays_in(value), self.calls.get(site)
        places = [ArrayKey(site, part, i) for i in range(len(arrays))]
        gradients = getattr(record, f"{part.removesuffix('s')}_gradients", ())
        with torch._C.DisableTorchFunction():  # not part of the model's code
            for array, place, gradient, recorded in zip(arrays, places, gradients, getattr(record, part, ()), strict=False):
                if place in self.sending and gradient is not None:
                    compared = array[part_of(host(array), recorded)]
                    self.total = self.total + (compared * torch.from_numpy(gradient)).sum()
            both = list(zip(places, arrays, strict=True))
            leaves = {
                place: array.detach().requires_grad_(array.is_floating_point()) for place, array in both if place in self.cut
            }
            goes_on = {place: leaf.clone() for place, leaf in leaves.items()}  # since the model's code may work in place
        self.leaves |= leaves
        return replaced(value, arrays, [goes_on.get(place, array) for place, array in both])
