"""Whole numbers that torch computes in 64 bits and that do not fit in 32, JAX's default: there they overflow."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from jaxformer.parity.capture.call_sites import CALL, ArrayKey
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.replays import replay_of
from jaxformer.parity.diagnose.trace import Op, Rewrite
from jaxformer.parity.record.reference import Reference

NARROWED = Change("overflow.narrowed", "computes it in {type}, where it overflows", "computes {0} in int64")
TYPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int32": lambda x: x.to(torch.int32).to(torch.int64),
    "uint32": lambda x: x & (2**32 - 1),
}
"""The last 32 bits, with a sign and without one."""


def proposals(operations: list[Op]) -> Iterator[Proposal]:
    """Overflow of all whole numbers that are too large."""
    large = too_large(operations)
    for name, narrow in TYPES.items() if large else ():
        rewritten = {op.place: lambda f, a, k, n, narrow=narrow: narrow(f(*a, **k)) for op in large}
        yield propose(NARROWED, label(large), partial(Rewrite, rewritten), type=name)


def whole_numbers_beyond(reference: Reference) -> str:
    """'; torch computes `ids * 1000003` (hash.py:8): up to 4.9e+10, too large for int32 ...', or ''."""
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    if not (large := too_large(replay.listed if replay else [])):
        return ""
    most = max(map(largest, large))
    return f"; torch computes {label(large)}: up to {most:.1e}, too large for int32, which is JAX's type for whole numbers"


def label(large: list[Op]) -> str:
    """The first operation, and how many more there are."""
    return large[0].target.label + (f" and {len(large) - 1} more" if len(large) > 1 else "")


def too_large(operations: list[Op]) -> list[Op]:
    """Operations with whole numbers beyond int32."""
    return [op for op in operations if largest(op) > torch.iinfo(torch.int32).max]


def largest(op: Op) -> int:
    """The size of the largest whole number that an operation gives; 0 where it gives none."""
    outputs = [run.output for run in op.runs]
    whole = [x for x in outputs if isinstance(x, torch.Tensor) and x.dtype == torch.int64 and x.numel()]
    return max((int(x.double().abs().max()) for x in whole), default=0)
