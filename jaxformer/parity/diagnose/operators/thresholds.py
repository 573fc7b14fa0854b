"""Mutations of the number that a tensor is compared with."""

from collections.abc import Iterator
from functools import partial

import torch

from jaxformer.parity.diagnose.mutation import Change, Free, Proposal
from jaxformer.parity.diagnose.operators.arguments import with_argument
from jaxformer.parity.diagnose.operators.functions import COMPARING
from jaxformer.parity.diagnose.trace import Op

MOST = 10_000
"""Numbers that differ in what is compared."""
THRESHOLD = Change("thresholds.number", "compares with another number, such as {value}")


def proposals(op: Op) -> Iterator[Proposal]:
    """Another number, between any two that it parts."""
    x, number = (*op.args, None, None)[:2]
    if op.name in COMPARING and isinstance(x, torch.Tensor) and type(number) in (int, float):
        values = torch.cat([run.args[0].double().flatten() for run in op.runs]).unique()
        if 1 < len(values) <= MOST and values.isfinite().all():
            free = Free(float(number), steps=tuple(values.tolist()))
            yield op.solving(THRESHOLD, free, partial(with_argument, 1), was=number)
