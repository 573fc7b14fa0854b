"""Whole numbers that torch computes in 64 bits and that do not fit in 32, JAX's default: there they overflow."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.capture.call_sites import CALL, ArrayKey
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.reruns import rerun_of
from jaxformer.parity.record.reference import Reference

BITS = 32
LARGEST = 2 ** (BITS - 1) - 1


def alterations_of(operations: list[Operation]) -> Iterator[Alteration]:
    """All of them overflow, as numbers with a sign and without one do."""
    if large := [each for each in operations if largest(each) > LARGEST]:
        for kind, function in (("int32", signed), ("uint32", unsigned)):
            altered = {each.place: lambda f, a, k, n, function=function: function(f(*a, **k)) for each in large}
            yield Alteration(f"{said(large)} in int64", f"in {kind}, where it overflows", partial(Altered, altered))


def whole_numbers_beyond(reference: Reference) -> str:
    """'; torch computes `ids * 1000003` (hash.py:8): up to 4.9e+10, too large for int32 ...', or ''."""
    rerun = rerun_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    large = [each for each in rerun.listed if largest(each) > LARGEST] if rerun else []
    if not large:
        return ""
    most = max(map(largest, large))
    return f"; torch computes {said(large)}: up to {most:.1e}, too large for int32, which is JAX's type for whole numbers"


def said(large: list[Operation]) -> str:
    """The first, and how many there are."""
    more = f" and {len(large) - 1} more" if len(large) > 1 else ""
    return f"{large[0].source}{more}"


def largest(operation: Operation) -> int:
    """Of the whole numbers that it gives, by their size; 0 where it gives none."""
    outputs = [run.output for run in operation.runs]
    return max((int(np.abs(x.numpy().astype(float)).max()) for x in outputs if is_long(x)), default=0)


def is_long(x: Any) -> bool:
    """Whether it is a tensor of whole numbers of 64 bits."""
    return isinstance(x, torch.Tensor) and x.dtype == torch.int64 and x.numel() > 0


def signed(x: torch.Tensor) -> torch.Tensor:
    """In int32: the last 32 bits, with a sign."""
    return x.to(torch.int32).to(torch.int64)


def unsigned(x: torch.Tensor) -> torch.Tensor:
    """In uint32: the last 32 bits."""
    return x & (2**BITS - 1)
