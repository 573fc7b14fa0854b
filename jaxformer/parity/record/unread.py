"""Parameters that torch's call does not read: its output stays as it is with NaN in their place."""

import copy
from collections.abc import Iterable, Iterator

import numpy as np

from jaxformer.parity.capture.torch_hooks import without_fast_path
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.record.outputs import side_by_side
from jaxformer.parity.record.reference import Reference, tensors_of


def unread_by_torch(names: Iterable[str], reference: Reference) -> Iterator[str]:
    """Those of these; none where torch is not at hand."""
    import torch

    if (source := reference.source) is None:
        return
    model, tensors = copy.deepcopy(source.module).double().eval(), tensors_of(reference.inputs, torch.float64)
    parameters = dict(model.named_parameters())
    with torch.no_grad(), torch_float64(), without_fast_path():
        usual = host(side_by_side(source.call(model, *tensors)))
        for name in names:
            before = parameters[name].clone()
            parameters[name].fill_(torch.nan)
            if np.array_equal(usual, host(side_by_side(source.call(model, *tensors))), equal_nan=True):
                yield name
            parameters[name].copy_(before)
