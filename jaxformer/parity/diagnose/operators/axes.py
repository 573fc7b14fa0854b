"""Mutations of the axes along which an operation works, and of how a sequence is pooled to one vector."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import of_reals
from jaxformer.parity.diagnose.computes import operand, with_argument
from jaxformer.parity.diagnose.functions import NORMALIZED, Norm
from jaxformer.parity.diagnose.modules import name_of
from jaxformer.parity.diagnose.mutation import Change, Proposal, Target, words_of
from jaxformer.parity.diagnose.operators.reroute import JOINS, Value, array_of, operands, parts, reads, rerouted, worded
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, same
from jaxformer.parity.trace.call_records import arrays_in

REDUCING = {"mean", "sum", "amax", "amin", "max", "min", "var", "std", "norm", "logsumexp", "argmax", "argmin"}
ORDERS = {"one": 1, "infinity": float("inf")}
EPSILONS = {"layer_norm": 1e-5, "rms_norm": 0.0}
MOST_AXES, MOST_ROWS = 4, 4096
Axes = tuple[int, ...]

OVER = Change("axes.reduced", "reduces over {axes:axes}, not over {was:axes}")
UNREDUCED = Change("axes.unreduced", "does not reduce: it takes each entry by itself")
MEAN_THEN_LARGEST = Change("axes.mean_then_largest", "takes the mean over axis {first} and the maximum over axis {second}")
ROLLED = Change(
    "axes.rolled",
    {
        "backwards": "rolls the other way round",
        "first": "rolls the other way along its first axis",
        "last": "rolls the other way along its last axis",
        "exchanged": "rolls with its shifts exchanged",
    },
)
ORDER = Change("axes.order", {"one": "takes the L1 norm (`ord=1`)", "infinity": "takes the largest absolute value (`ord=inf`)"})
ROWS = Change("axes.rows", "normalises {rows} rows together")
NORMED = Change("axes.normed", "normalises over {axes:axes}")


def reductions(op: Op) -> Iterator[Proposal]:
    """Mutations of reduction axes: other ones, or none; or the mean over one of two axes and the maximum over the other."""
    axes = axes_of(op)
    x = op.args[0] if axes else None
    if not isinstance(x, torch.Tensor) or not 1 < x.ndim <= MOST_AXES:
        return
    for many in range(1, x.ndim + 1):
        for other in itertools.combinations(range(x.ndim), many):
            if other != axes and any(x.shape[axis] > 1 for axis in set(other) ^ set(axes)):
                yield op.instead(OVER, partial(over, other), axes=other, was=axes)
    if isinstance(op.output, torch.Tensor) and op.output.ndim == x.ndim:
        yield op.instead(UNREDUCED, operand(0))
    for first, second in itertools.permutations(axes) if op.name in ("mean", "amax") and len(axes) == 2 else ():
        yield op.instead(MEAN_THEN_LARGEST, partial(mean_then_largest, (first, second)), first=first, second=second)


def axes_of(op: Op) -> Axes:
    """Axes over which an operation reduces, as non-negative numbers; empty if it does not reduce."""
    x = next(iter(op.args), None)
    if op.name not in REDUCING or not isinstance(x, torch.Tensor):
        return ()
    found = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", op.kwargs.get("axis"))
    found = range(x.ndim) if found is None else found if isinstance(found, (tuple, list)) else [found]
    return tuple(sorted(axis % x.ndim for axis in found)) if all(type(axis) is int for axis in found) else ()


def over(axes: Axes, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute the function over other axes."""
    keyword = "axis" if "axis" in kwargs else "dim"
    keepdim = {"keepdim": args[2]} if len(args) > 2 and type(args[2]) is bool else {}
    return function(args[0], **(kwargs | keepdim | {keyword: axes if len(axes) > 1 else next(iter(axes))}))


def mean_then_largest(axes: Axes, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute the mean over the first axis, and the maximum along the second."""
    keep = kwargs.get("keepdim", True in args[2:])
    found = args[0].mean(axes[0], keepdim=True).amax(axes[1], keepdim=True)
    return found if keep else found.squeeze(axes)


def rolls(op: Op) -> Iterator[Proposal]:
    """Mutations of a roll: in the other direction, or with its shifts exchanged between the axes."""
    if op.name != "roll":
        return
    at, given = (1, op.args[1]) if len(op.args) > 1 else ("shifts", op.kwargs["shifts"])
    shifts = [*given] if isinstance(given, (tuple, list)) else [given]
    others = {"backwards": [-each for each in shifts]}
    if len(shifts) > 1:
        first, last = [-shifts[0], *shifts[1:]], [*shifts[:-1], -shifts[-1]]
        others |= {"first": first, "last": last, "exchanged": shifts[::-1]}
    for how, other in others.items():
        if other != shifts:
            yield op.instead(ROLLED, with_argument(at, other if isinstance(given, (tuple, list)) else other[0]), how=how)


def orders(op: Op) -> Iterator[Proposal]:
    """Mutations of the order of a norm, where torch takes the default 2: the L1 norm, or the largest absolute value."""
    name = {"norm": "p", "vector_norm": "ord"}.get(op.name, "")
    for how, order in ORDERS.items() if name and op.kwargs.get(name) in (None, "fro") and len(op.args) == 1 else ():
        yield op.instead(ORDER, with_argument(name, order), how=how)


def rows_together(op: Op) -> Iterator[Proposal]:
    """Mutations of a group norm over `B * T` rows that normalises several rows together, such as all those of one B."""
    rows = len(op.args[0]) if op.name == "group_norm" else 0
    for many in range(2, rows) if rows <= MOST_ROWS else ():
        if rows % many == 0:
            yield op.instead(ROWS, partial(by_blocks, many), rows=many)


def by_blocks(many: int, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute the function on blocks of `many` rows: the rows of a block become positions of a single row."""
    x = args[0]
    blocks = x.reshape(-1, many, *x.shape[1:]).transpose(1, 2)
    y = function(blocks.contiguous(), *args[1:], **kwargs)
    return y.transpose(1, 2).reshape(x.shape)


def other_axes(op: Op) -> Iterator[Proposal]:
    """Mutations of a layer norm or RMS norm: over one or two axes other than the last."""
    x = next(iter(op.args), None)
    if op.name not in NORMALIZED or not isinstance(x, torch.Tensor) or not 2 < x.ndim < 5:
        return
    given = [each for each in (*op.args, *op.kwargs.values()) if type(each) is float]
    for axes in itertools.chain(*(itertools.combinations(range(x.ndim), many) for many in (1, 2))):
        if axes != (x.ndim - 1,):
            norm = Norm(axes=axes, epsilon=next(iter(given), EPSILONS[op.name]))
            yield op.instead(NORMED, norm, axes=axes)


MOST_SEQUENCES, MOST_MASKS = 4, 3
MOST_POOLED = 4
"""Largest number of mutated operations that read one vector a row, `B D`: the last ones."""
Pool = Callable[..., torch.Tensor]
"""pool(x, mask) -> one vector a row, of a sequence `B T D`."""


def mean_by(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Compute the mean over the positions where `counts` is True; 0 where it is nowhere."""
    weights = counts[..., None].to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


PLAIN: dict[str, tuple[str, Pool]] = {
    "first": ("the first position of {1}", lambda x: x[:, 0]),
    "last": ("the last position of {1}", lambda x: x[:, -1]),
    "mean": ("the mean of all positions of {1}", lambda x: x.mean(1)),
    "largest": ("the largest of all positions of {1}", lambda x: x.amax(1)),
    "mean_behind_first": ("the mean without the first position of {1}", lambda x: x[:, 1:].mean(1)),
}
MASKED: dict[str, tuple[str, Pool]] = {
    "masked_mean": ("the mean of {1} by {2}", mean_by),
    "masked_sum": ("the sum of {1} by {2}, divided by all positions", lambda x, m: (x * m[..., None]).mean(1)),
    "masked_last": (
        "the last position of {1} by {2}",
        lambda x, m: x[torch.arange(len(x)), (m * torch.arange(x.shape[1])).argmax(1)],
    ),
    "counted": ("position {2}, counted, of {1}", lambda x, m: x[torch.arange(len(x)), (m.sum(1) - 1).clamp(min=0)]),
    "masked_largest": ("the largest of {1} by {2}", lambda x, m: x.masked_fill(~m[..., None], -torch.inf).amax(1)),
    "masked_mean_behind_first": (
        "the mean of {1} by {2}, without the first",
        lambda x, m: mean_by(x, m & (torch.arange(m.shape[1]) > 0)),
    ),
}
CONTRARY: dict[str, tuple[str, Pool]] = {
    f"contrary_{how}": (words.replace("{2}", "not {2}"), lambda x, m, pool=pool: pool(x, ~m))
    for how, (words, pool) in MASKED.items()
}
POOLINGS = words_of(PLAIN | MASKED | CONTRARY)
"""Words for ways to pool a sequence; `{1}` is the sequence, `{2}` the mask."""
IN_PLACE = Change("pooling.array", worded("uses VALUE in its place", POOLINGS), "has {0} as it is", reroutes=True)
OPERAND = Change("pooling.operand", worded("reads VALUE for its {ordinal} operand", POOLINGS), reroutes=True)
PART = Change("pooling.part", worded("reads VALUE for part {part}", POOLINGS), reroutes=True)

Known = tuple[str | Target, torch.Tensor]
"""Source of a tensor, and the tensor."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of how a sequence `B T D` is pooled to `B D`: in the array itself, and in what operations read."""
    known = [*known_in(replay)]
    masks = [(its, x) for its, x in known if x.dtype == torch.bool and x.ndim == 2 and x.any() and not x.all()]
    ops = [op for op in replay.operations if len(op.runs) == 1 and any(of_reals(x) and x.ndim == 2 for x in read_by(op))]
    fitting = {tuple(x.shape) for op in ops[-MOST_POOLED:] for x in read_by(op)} | {replay.wanted.shape}
    pooled = [value for each in sequences(known, fitting) for value in pooled_of(*each, masks[:MOST_MASKS])]
    for value in pooled:
        if value.x.shape == replay.wanted.shape:
            yield reads(IN_PLACE, array_of(replay), value)
    for op in ops[-MOST_POOLED:]:
        yield from rerouted(PART, parts(op), pooled) if op.name in JOINS else rerouted(OPERAND, operands(op, 2), pooled)


def known_in(replay: Replay) -> Iterator[Known]:
    """Tensors of the call with their sources: its inputs, its children's outputs, and the outputs of its operations."""
    for number, x in enumerate(replay.input_arrays):
        yield f"input {number}", x
    for site, given in replay.given.items():
        for x in arrays_in(given)[:1]:
            yield name_of(replay, site), x
    for op in replay.operations:
        for x in arrays_in(op.output)[:1] if len(op.runs) == 1 else ():
            yield op.target, x
        for x in op.args[1:2] if op.name == "masked_fill" else ():
            yield "what is not masked", ~x


def read_by(op: Op) -> list[torch.Tensor]:
    """Tensors that an operation reads: its first two operands, or the parts that it joins."""
    return [x for x in (op.args[0] if op.name in JOINS else op.args[:2]) if isinstance(x, torch.Tensor)]


def sequences(known: Sequence[Known], fitting: set[tuple[int, ...]]) -> list[Known]:
    """Distinct arrays `B T D` whose positions have one of the shapes `fitting`: the first one, and the last
    `MOST_SEQUENCES`."""
    found: list[Known] = []
    for target, x in known:
        fits = x.is_floating_point() and x.ndim == 3 and x.shape[1] > 1 and (len(x), x.shape[2]) in fitting
        if fits and not any(same(x, other) for _, other in found):
            found.append((target, x))
    return [*found[:-MOST_SEQUENCES][:1], *found[-MOST_SEQUENCES:]]


def pooled_of(target: str | Target, x: torch.Tensor, masks: Sequence[Known]) -> Iterator[Value]:
    """Vectors that are pooled from a sequence, one a row, in every way: without a mask, and by each of the masks."""
    yield from (Value(how, (target,), pool(x), {}) for how, (_, pool) in PLAIN.items())
    for its, mask in masks:
        ways = MASKED | CONTRARY if mask.shape == x.shape[:2] else {}
        yield from (Value(how, (target, its), pool(x, mask), {}) for how, (_, pool) in ways.items())
