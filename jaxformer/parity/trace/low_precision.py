"""torch in low precision: the whole model, and the own code of each of its modules."""

import copy
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.numerics.cast_on_use import beside_weights, casts_on_use
from jaxformer.parity.numerics.metrics import HUGE, host
from jaxformer.parity.trace.call_records import Trace, arrays_in, replaced
from jaxformer.parity.trace.call_sites import ArrayKey, Site
from jaxformer.parity.trace.outputs import Call, side_by_side
from jaxformer.parity.trace.torch_hooks import watch_torch, without_fast_path


def output_in(module: Any, inputs: tuple[np.ndarray, ...], call: Call, name: str) -> tuple[np.ndarray, bool]:
    """Return the output of a copy of the module in the dtype `name`, as float32; and True if its buffers kept their dtype.

    A model loaded in bfloat16 keeps its tables in float32. Code that concatenates such a table with activations refuses mixed
    dtypes, and runs with rounded buffers.
    """
    if name == "float32":
        return _output(beside_weights(module) if casts_on_use() else copy.deepcopy(module).float(), inputs, call, name), True
    try:
        return _output(in_bfloat16(module, keeps_buffers=True), inputs, call, name), True
    except RuntimeError:
        return _output(in_bfloat16(module, keeps_buffers=False), inputs, call, name), False


def _output(typed: Any, inputs: tuple[np.ndarray, ...], call: Call, name: str) -> np.ndarray:
    import torch

    with torch.no_grad(), without_fast_path():
        output = side_by_side(call(typed, *tensors_of(inputs, getattr(torch, name))))
        return host(output if output.is_complex() else output.float())


def in_bfloat16(module: Any, *, keeps_buffers: bool) -> Any:
    """Return a copy of the module with its weights in bfloat16, and its buffers too unless they are kept."""
    typed = copy.deepcopy(module).bfloat16()
    if keeps_buffers:
        for own, original in zip(typed.modules(), copy.deepcopy(module).modules(), strict=True):
            own._buffers.update(original._buffers)
    return typed


def tensors_of(inputs: tuple[np.ndarray, ...], floating: Any) -> list[Any]:
    """Return the inputs as tensors, floats in this dtype."""
    import torch

    tensors = [torch.tensor(array) for array in inputs]
    return [tensor.to(floating) if tensor.is_floating_point() else tensor for tensor in tensors]


def rounded(calls: Trace) -> Trace:
    """Round the inputs and outputs of calls to bfloat16, except masks and other huge numbers, whose value depends on the
    dtype."""

    def each(array: np.ndarray) -> np.ndarray:
        usual = array.dtype.kind == "f" and (np.abs(array) < HUGE).all()
        return array.astype(jnp.bfloat16).astype(array.dtype) if usual else array

    return {
        site: replace(record, inputs=tuple(map(each, record.inputs)), output=tuple(map(each, record.output)))
        for site, record in calls.items()
    }


def own_arrays(typed: Any, call: Call, inputs: tuple[np.ndarray, ...], given: "Given") -> Mapping[ArrayKey, np.ndarray]:
    """Return what each module's own code computes from torch's arrays in bfloat16, by array key; the run continues with torch's
    arrays."""
    import torch

    with torch.no_grad(), watch_torch(typed, given):
        call(typed, *tensors_of(inputs, torch.bfloat16))
    return given.found


class Given:
    """Observer that records computed arrays and replaces them by torch's."""

    def __init__(self, calls: Trace, places: Container[ArrayKey]):
        self.calls, self.places = calls, places
        self.found: dict[ArrayKey, np.ndarray] = {}

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._seen(site, "inputs", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._seen(site, "output", output)

    def _seen(self, site: Site, part: str, value: Any) -> Any:
        import torch

        tensors = arrays_in(value)
        instead = list(tensors)
        with torch._C.DisableTorchFunction():  # not part of the model's code
            for i, tensor in enumerate(tensors):
                if (place := ArrayKey(site, part, i)) in self.places and tensor.is_floating_point():
                    self.found[place] = host(tensor.double())
                    instead[i] = torch.from_numpy(getattr(self.calls[site], part)[i]).to(tensor.dtype)
        return replaced(value, tensors, instead)
