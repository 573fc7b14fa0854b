"""Mutations of one operation: another function, left out, applied twice, operands exchanged or centered, an output in another
order or shifted."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.computes import JOINING, behind, of_all, of_first, operand, with_named, with_operand
from jaxformer.parity.diagnose.functions import (
    ACTIVATIONS,
    ARITHMETIC,
    COMPARING,
    CONTRARY,
    EXPONENTIALS,
    NORMALIZED,
    NORMS,
    OTHER_WITH_NUMBERS,
    OTHERWISE,
    POOLINGS,
    REDUCTIONS,
    ROUNDINGS,
    VARIANCES,
    WINDOWED,
    WINDOWS,
    WITH_NUMBERS,
    Norm,
    is_activation,
    is_real,
    padded,
    spelled,
)
from jaxformer.parity.diagnose.mutation import DELETES, REPEATS, Change, Free, Proposal, propose, words_of
from jaxformer.parity.diagnose.numbers_and_orders import ORDINALS, arranged
from jaxformer.parity.diagnose.trace import Op, Rewrite, same

COPYING = ("clone", "contiguous", "to", "detach", "float")
SWAPPED = {"sub", "div", "truediv", "matmul", "rsub", "where", "pow"}
POOLED = ("getitem", "mean", "sum", "select", "amax")
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
FEW_PARTS, MOST_PARTS = 4, 12

FUNCTION = Change("operations.function", lambda args: f"has {COMPARING.get(args['function'], args['function'])} there")
ACTIVATION = Change("operations.activation", "has {how} there")
EXPONENTIAL = Change("operations.exponential", "has {how} there")
OF_TWO = Change("operations.arithmetic", words_of(ARITHMETIC))
OF_SEVERAL = Change("operations.arithmetic_of_several", words_of(ARITHMETIC), "computes {targets:and}")
WITH_NUMBER = Change("operations.with_number", words_of(WITH_NUMBERS))
NORM = Change(
    "operations.norm",
    {
        "rms": "does not subtract the mean (RMSNorm)",
        "unbiased": "divides the variance by n - 1 (unbiased)",
        "kept": "subtracts the mean in the variance alone",
        "centered": "subtracts the mean first (LayerNorm)",
        "undivided": "does not divide by the norm",
        "batch": "normalises by the batch's own statistics (training)",
        "strided": "groups every nth channel: `reshape(..., C / G, G)` for (G, C / G)",
        "positions": "normalises each position by itself",
        "channels": "normalises each position by itself, over all channels",
        "rows": "normalises over all rows of the batch",
    },
)
EPSILON = Change("operations.epsilon", "adds {value} after the root: sqrt(x) + eps", "adds epsilon {was:g} under the root")
PADS = Change(
    "operations.pads",
    {
        "counted": "pads as 'SAME' does, less before than after, and counts padded entries in the mean",
        "same": "pads as 'SAME' does, less before than after",
        "after": "pads at the end alone",
        "before": "pads in front alone",
        "zeros": "pads with 0",
    },
)
WINDOW = Change(
    "operations.window",
    {
        "largest": "takes the maximum there",
        "mean": "takes the mean there",
        "mean_uncounted": "takes the mean there, without padded entries",
        "uncounted": "does not count padded entries in the mean",
        "apart": "ends each window where the next one begins",
        "apart_evenly": "has windows side by side, the longer ones first (`jnp.array_split`)",
    },
)
VARIANCE = Change(
    "operations.variance",
    {"biased": "divides by n (biased)", "unbiased": "divides by n - 1 (unbiased)"},
)
RESIZINGS = {
    "plain": "resizes by {mode}",
    "antialias": "resizes by {mode}, antialiased (`jax.image.resize`'s default)",
    "align_corners": "resizes by {mode} with align_corners",
}
RESIZED = Change("operations.resized", RESIZINGS)
POOLING = Change("operations.pooling", "takes the {which} along axis {axis}")
ENDS = {"first": 0, "last": -1}
END_LEFT = Change("operations.end_left", "leaves the {which} position as it is (along axis 1: a class token?)")
LEFT_OUT = Change("operations.left_out", "leaves it out", cost=DELETES)
ALONE = Change(
    "operations.operand_alone",
    lambda args: f"leaves out the {'second' if args['ordinal'] == ORDINALS[0] else 'first'} operand",
    cost=DELETES,
)
TWICE = Change("operations.twice", "does it twice", cost=REPEATS)
EXCHANGED = Change("operations.exchanged", {"operands": "exchanges its two operands", "halves": "exchanges its halves"})
CENTERED = Change("operations.centered", "subtracts the mean from its {ordinal} operand, as LayerNorm does")
ORDER = Change("operations.order", lambda args: f"takes its parts {arranged(args['order'])}")
TWO_PARTS = Change("operations.two_parts", "exchanges its parts {one} and {other}")
CONTRARIES = Change("operations.contrary", "has the opposite (not)")
MORE = Change("operations.more", "adds {more} to it")
SHIFTED = Change(
    "operations.shifted",
    {
        "around": "has it one {where} along axis {axis}, rolled around",
        "cut": "has it one {where} along axis {axis}, with 0 in the gap",
    },
)


def replacements(op: Op) -> Iterator[Proposal]:
    """Mutations that compute another function of the same kind."""
    name = op.name
    yield from activations(op)
    if name in CONTRARY:
        yield op.instead(FUNCTION, of_all(getattr(torch, CONTRARY[name])), function=CONTRARY[name])
    if name == "pow" and [*map(type, op.args[1:])] == [int] and op.args[1] == 2:
        yield op.instead(FUNCTION, of_first(torch.abs), function="abs")
    if sum(isinstance(each, torch.Tensor) for each in op.args[:2]) == 2:
        for how in OTHERWISE.get(name, ()):
            yield op.instead(OF_TWO, of_first(ARITHMETIC[how][1], 2), how=how)
    numbers = [each for each in op.args[:2] if type(each) in (int, float)]
    for how in OTHER_WITH_NUMBERS.get(name, ()) if len(numbers) == 1 and is_real(op) else ():
        function, number = WITH_NUMBERS[how][1], numbers[0]
        yield op.instead(WITH_NUMBER, partial(of_tensor, function, number), how=how, number=number)
    for how, norm in NORMS.get(name, {}).items():
        yield op.instead(NORM, norm, how=how)
    if name in NORMALIZED:
        was = next((each for each in (*op.args, *op.kwargs.values()) if type(each) is float), 1e-5)
        yield op.solving(EPSILON, Free(was, sure=True), lambda epsilon: Norm("root", epsilon=epsilon), was=was)
    if name in WINDOWED:
        same = "counted" if name.startswith("avg") else "same"
        for how in (same, "after", "before", *(["zeros"] if name.startswith("max") else [])):
            yield op.instead(PADS, partial(padded, how), how=how)
    for how, window in WINDOWS.get(name[:-2], {}).items():
        yield op.instead(WINDOW, window, how=how)
    for family in (each for each in (REDUCTIONS, ROUNDINGS) if name in each):
        for other in (other for other in family if other != name):
            yield op.instead(FUNCTION, of_all(getattr(torch, other)), function=other)
    for how, correction in (("biased", 0), ("unbiased", 1)) if name in VARIANCES else ():
        yield op.instead(VARIANCE, partial(corrected, correction), how=how)
    for mode, how in itertools.product(MODES, RESIZINGS) if name == "interpolate" else ():
        switches = {"align_corners": True if how == "align_corners" else None, "antialias": how == "antialias"}
        yield op.instead(RESIZED, with_named(mode=mode, **switches), how=how, mode=mode)


def sharing(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of several operations of one kind that share an operand, all alike: of queries and keys times the cosines."""
    for name in OTHERWISE:
        those = [op for op in ops if op.name == name and [*map(torch.is_tensor, op.args[:2])] == [True, True]]
        shared = [op.args[1] for op in those]
        for i, x in enumerate(shared):
            group = [op for op in those[i:] if same(op.args[1], x)]
            for how in OTHERWISE[name] if len(group) > 1 and not any(same(x, each) for each in shared[:i]) else ():
                edit = partial(Rewrite, {op.place: of_first(ARITHMETIC[how][1], 2) for op in group})
                yield propose(OF_SEVERAL, tuple(op.target for op in group), edit, how=how)


def of_tensor(function: Any, number: float, _: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute another function of the operand that is a tensor, and a number."""
    return function(next(each for each in args if isinstance(each, torch.Tensor)), number)


def activations(op: Op) -> Iterator[Proposal]:
    """Mutations that compute another activation or exponential. Those that give 0 everywhere, or their operand, are skipped:
    mutations that leave something out cover these."""
    own = "gelu by tanh" if op.kwargs.get("approximate") == "tanh" else op.name
    for how, function in ACTIVATIONS.items() if is_activation(op) and op.args else ():
        alike = ("softmax" in how) <= (op.name in ("softmax", "sigmoid"))
        if how != own and alike and (other := function(op.args[0])).any() and not same(other, op.args[0]):
            yield op.instead(ACTIVATION, of_first(function), how=spelled(how))
    for how, function in EXPONENTIALS.items() if op.name == "exp" else ():
        yield op.instead(EXPONENTIAL, of_first(function), how=how)


def corrected(correction: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a variance or standard deviation with this correction: 0 for biased, 1 for unbiased."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("unbiased", "correction")}
    kept = tuple(each for each in args if not isinstance(each, bool))
    keepdim = {"keepdim": True} if True in args[2:] else {}
    return function(*kept, **kwargs, **keepdim, correction=correction)


def poolings(op: Op) -> Iterator[Proposal]:
    """Mutations that reduce one axis in another way: its mean, maximum, sum, first or last entry."""
    x, y = next(iter(op.args), None), op.output
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.ndim != y.ndim + 1 or not y.is_floating_point():
        return
    for axis in range(x.ndim) if op.name in POOLED else ():
        for which, pool in POOLINGS.items() if x.shape[:axis] + x.shape[axis + 1 :] == y.shape else ():
            yield op.instead(POOLING, of_first(lambda x, pool=pool, axis=axis: pool(x, axis)), which=which, axis=axis)


def omissions(op: Op) -> Iterator[Proposal]:
    """Mutations that leave an operation, or one of its operands, out: one of its tensors takes the place of its output."""
    tensors = [i for i, each in enumerate(op.args) if isinstance(each, torch.Tensor)]
    for i in tensors if isinstance(op.output, torch.Tensor) and op.name not in COPYING else ():
        if len(tensors) == 1 and op.args[i].shape == op.output.shape:
            yield op.instead(LEFT_OUT, operand(i))
        elif len(tensors) > 1 and (op.name in JOINING or op.args[i].shape == op.output.shape):
            yield op.instead(ALONE, operand(i), ordinal=ORDINALS[i])


def at_ends(op: Op) -> Iterator[Proposal]:
    """Mutations that leave the first or the last position of an array `B T D`, such as a class token, out of an operation."""
    x, y = next(iter(op.args), None), op.output
    if op.name in COPYING or not is_real(op) or y.ndim != 3 or not isinstance(x, torch.Tensor) or x.shape != y.shape:
        return
    for which, at in ENDS.items() if y.shape[1] > 2 else ():
        yield op.instead(END_LEFT, partial(without_end, at), which=which)


def without_end(at: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute the function, with its first operand at one position along axis 1."""
    y = function(*args, **kwargs).clone()
    y[:, at] = args[0][:, at]
    return y


def repeats(op: Op) -> Iterator[Proposal]:
    """Mutation that applies the operation to its own output again."""
    x, y = next(iter(op.args), None), op.output
    alike = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.is_floating_point() and x.shape == y.shape
    if alike and op.name != "linear":
        yield op.instead(TWICE, lambda f, a, k, n: f(f(*a, **k), *a[1:], **k))


def exchanges(op: Op) -> Iterator[Proposal]:
    """Mutations that exchange the two operands, or the halves of a GLU's operand."""
    one, other = [None, None, *op.args][-2:]
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    if op.name in SWAPPED and tensors and one.shape == other.shape:
        yield op.instead(EXCHANGED, lambda f, a, k, n: f(*a[:-2], a[-1], a[-2], **k), how="operands")
    if op.name == "glu":
        axis = next(iter(op.args[1:]), op.kwargs.get("dim", -1))
        halves = with_operand(0, lambda x: torch.cat(x.chunk(2, axis)[::-1], axis))
        yield op.instead(EXCHANGED, halves, how="halves")


def centered(op: Op) -> Iterator[Proposal]:
    """Mutations that subtract its mean over the last axis from an operand."""
    for i, x in enumerate(op.args[:2] if is_real(op) and not is_activation(op) else ()):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1 and x.shape[-1] > 2:
            off = with_operand(i, lambda x: x - x.mean(-1, keepdim=True))
            yield op.instead(CENTERED, off, ordinal=ORDINALS[i])


def outputs(op: Op) -> Iterator[Proposal]:
    """Mutations of the output: integers plus a number, booleans inverted, parts in another order, entries shifted along an
    axis."""
    x = op.output
    if isinstance(x, (tuple, list)):
        for order in [*itertools.permutations(range(len(x)))][1:] if len(x) <= FEW_PARTS else ():
            yield op.instead(ORDER, behind(partial(in_order, order)), order=order)
        for one, other in itertools.combinations(range(len(x)), 2) if FEW_PARTS < len(x) <= MOST_PARTS else ():
            order = [{one: other, other: one}.get(i, i) for i in range(len(x))]
            yield op.instead(TWO_PARTS, behind(partial(in_order, order)), one=one, other=other)
    elif x.dtype == torch.bool:
        yield op.instead(CONTRARIES, behind(torch.logical_not))
    elif not x.is_floating_point() and not x.is_complex():
        for more in (1, -1, 2):
            yield op.instead(MORE, behind(lambda y, more=more: y + more), more=more)
    else:
        axes = [axis for axis in (1, 2) if x.ndim > 2 and x.shape[axis] > 1]
        for axis, (where, more) in itertools.product(axes, (("later", 1), ("earlier", -1))):
            for how in ("around", "cut")[axis - 1 :]:
                moved = behind(partial(shifted, axis, more, how == "cut"))
                yield op.instead(SHIFTED, moved, how=how, where=where, axis=axis)


def in_order(order: Sequence[int], parts: Any) -> Any:
    """Parts of a list or tuple in another order; a named tuple becomes a plain one."""
    found = [parts[i] for i in order]
    return found if type(parts) is list else tuple(found)


def shifted(axis: int, more: int, is_cut: bool, x: torch.Tensor) -> torch.Tensor:
    """Shift a tensor by `more` (1 or -1) along an axis: rolled around, or with 0 for the entry that comes around."""
    y = x.roll(more, axis)
    if is_cut:
        y.select(axis, 0 if more > 0 else -1).zero_()
    return y
