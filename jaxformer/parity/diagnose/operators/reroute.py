"""Mutations in which an operation, a join or the array itself reads another array of the same shape, or has one added."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose.calls import Arguments, of_reals
from jaxformer.parity.diagnose.computes import noting, with_operand
from jaxformer.parity.diagnose.functions import NORMALIZED, REDUCTIONS, is_real
from jaxformer.parity.diagnose.modules import intercepted, keeps_a_shape, name_of, recorded
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, Target, propose
from jaxformer.parity.diagnose.numbers_and_orders import ORDINALS
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import NEARLY, off
from jaxformer.parity.diagnose.trace import Op, Rewrite, is_inside, same
from jaxformer.parity.numerics.metrics import host

MOST_BEFORE, MOST_IN_SUMS = 8, 24
"""Largest number of earlier arrays that may be read instead, the last ones: by most operations, and by sums (a residual)."""
MOST_RUNS = MOST_PARTS = 4
MOST_CALLED = 12
"""Largest number of modules inside whose arguments are exchanged."""
MOST_NORMED = 12
"""Largest number of arrays whose norm may take the place of the array: the last ones."""
JOINS = ("cat", "concat", "stack")


def worded(template: str, values: Mapping[str, str]) -> dict[str, str]:
    """Words for each kind of value: the template with these for VALUE."""
    return {how: template.replace("VALUE", words) for how, words in values.items()}


VALUES = {
    "given": "what it is given",
    "argument": "its input {number}",
    "child": "what {1} gives",
    "part": "part {number} of {1}",
    "run": "{1}, time {number} of {runs},",
    "plain": "{1}",
}
"""Words for the kinds of values that may be read; `{1}` is what made the value."""
OPERAND = Change("reroute.operand", worded("reads VALUE for its {ordinal} operand", VALUES), reroutes=True)
ARGUMENT = Change(
    "reroute.argument", worded("passes VALUE for its {ordinal} argument", VALUES), "passes {0} its own arguments", reroutes=True
)
PART = Change("reroute.part", worded("reads VALUE for part {part} of {parts}", VALUES), reroutes=True)
IN_PLACE = Change("reroute.array", worded("uses VALUE in its place", VALUES), "has {0} as it is", reroutes=True)
CONSTANT = Change("reroute.constant", "has {value} everywhere", "has {0} as it is", reroutes=True)
NORMED = Change("reroute.normed", worded("applies {2} to VALUE in its place", VALUES), "has {0} as it is", reroutes=True)
LAST = Change("reroute.last_run", "reads the last output of {1} for its {ordinal} operand", reroutes=True)
MORE = Change("reroute.added_to_operand", worded("does so with VALUE added to it", VALUES))
ADDED = Change("reroute.added_to_array", worded("adds VALUE to it", VALUES), "has {0} as it is")

Function = Callable[[Any], Any]
Combine = Callable[[Any, torch.Tensor], torch.Tensor]
"""combine(what torch reads, value) -> what is read instead."""


def taken(x: Any, other: torch.Tensor) -> torch.Tensor:
    """Return a copy of the value, whatever torch reads."""
    return other.clone()


class Value(NamedTuple):
    """Tensor that may be read instead of torch's."""

    how: str
    """Kind of value, a key of the change's words."""
    targets: tuple[str | Target, ...]
    """Targets or names of what made the tensor."""
    x: torch.Tensor
    args: dict[str, Any]


class Slot(NamedTuple):
    """Place where another tensor may be read."""

    target: Target
    x: torch.Tensor
    """Tensor that torch reads."""
    edit: Callable[[Function], Edit]
    """edit(function) -> the edit in which the function of the tensor is read."""
    args: dict[str, Any]


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations in which the array, operands and joined parts are other tensors of the call, the plain ones first."""
    given, made = [*given_in(replay), *parts_in(replay.listed)], [*made_in(replay.listed)]
    real = [value for value in given if value.x.is_floating_point()]
    yield from arrays(replay, [*given, *made])
    for op in (op for op in replay.operations if len(op.runs) == 1):
        yield from rerouted(OPERAND, operands(op), real)
        yield from rerouted(PART, parts(op), [*given, *made[-MOST_BEFORE:]])


def given_in(replay: Replay) -> Iterator[Value]:
    """Inputs of the call, and outputs of its children."""
    found = replay.input_arrays
    for number, x in enumerate(found):
        yield Value("argument" if len(found) > 1 else "given", ("the call",), x, {"number": number})
    for site, x in replay.given.items():
        if isinstance(x, torch.Tensor):
            yield Value("child", (name_of(replay, site),), x, {})


def parts_in(ops: Sequence[Op]) -> Iterator[Value]:
    """Parts that operations such as `split` give."""
    for op in ops:
        if len(op.runs) == 1 and isinstance(op.output, (tuple, list)) and len(op.output) <= MOST_PARTS:
            yield from (Value("part", (op.target,), x, {"number": number}) for number, x in enumerate(op.output, 1))


def made_in(ops: Sequence[Op]) -> Iterator[Value]:
    """Outputs of operations: of each run where there are a few; none where there are more."""
    for op in (op for op in ops if len(op.runs) <= MOST_RUNS):
        how, many = "run" if len(op.runs) > 1 else "plain", len(op.runs)
        for number, run in enumerate(op.runs, 1):
            if isinstance(run.output, torch.Tensor):
                yield Value(how, (op.target,), run.output, {"number": number, "runs": many} if many > 1 else {})


def operands(op: Op, most: int = 3) -> Iterator[Slot]:
    """Slots of an operation's first `most` operands."""
    for i, x in enumerate(op.args[:most]):
        if isinstance(x, torch.Tensor) and x.ndim:
            yield Slot(op.target, x, lambda f, i=i: op.rewrite(with_operand(i, f)), {"ordinal": ORDINALS[i]})


def parts(op: Op) -> Iterator[Slot]:
    """Slots of the arrays that an operation joins."""

    def another(i: int, f: Function) -> Rewrite:
        return op.rewrite(with_operand(0, lambda x: [*x[:i], f(x[i]), *x[i + 1 :]]))

    for i, x in enumerate(op.args[0] if op.name in JOINS else ()):
        yield Slot(op.target, x, partial(another, i), {"part": i + 1, "parts": len(op.args[0])})


def arguments(replay: Replay) -> Iterator[Proposal]:
    """Mutations in which a module inside that is given several arrays gets another one for one of them, as the values of
    attention."""
    calls: dict[str, list[Arguments]] = {}
    inner = {name: module for name, module in replay.module.named_modules() if name}
    replay.array(recorded(inner, calls))
    once = [(name, its[0][0]) for name, its in calls.items() if len(its) == 1 and sum(map(of_reals, its[0][0])) > 1]
    values = [*given_in(replay), *[*made_in(replay.listed)][-MOST_BEFORE:]]
    for name, args in once[:MOST_CALLED]:
        for i, x in [(i, x) for i, x in enumerate(args[: len(ORDINALS)]) if of_reals(x)]:
            edit = partial(called_with, inner[name], i)
            yield from rerouted(ARGUMENT, iter([Slot(Target(name), x.clone(), edit, {"ordinal": ORDINALS[i]})]), values)


def called_with(module: Any, i: int, change: Function) -> Edit:
    """Edit in which a module is called with a function of its positional argument `i`."""

    def through(name: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(*args[:i], change(args[i]), *args[i + 1 :], **kwargs)

    return intercepted({"": module}, through)


def array_of(replay: Replay) -> Slot:
    """Slot of the array that jax's is compared with."""
    label = f"the input of {replay.place.site}" if replay.place.part == "inputs" else "the array"
    return Slot(Target(label), torch.from_numpy(replay.wanted), replay.followed_by, {})


def reads(change: Change, slot: Slot, value: Value, combine: Combine = taken, *others: str) -> Proposal:
    """Propose that a slot reads a value, or what `combine` makes of both."""
    edits = partial(slot.edit, lambda x: combine(x, value.x))
    return propose(change, (slot.target, *value.targets, *others), edits, how=value.how, **slot.args, **value.args)


def rerouted(change: Change, slots: Iterator[Slot], values: Sequence[Value]) -> Iterator[Proposal]:
    """Mutations in which slots read values of their type and shape."""
    for slot in slots:
        yield from (reads(change, slot, value) for value in values if fits(slot.x, value.x))


def fits(x: torch.Tensor, other: torch.Tensor, along_last: bool = False) -> bool:
    """True for another array of the same type and shape; if `along_last`, the last axis may have another size."""
    alike = along_last and other.ndim == x.ndim and other.shape[:-1] == x.shape[:-1]
    return (alike or other.shape == x.shape) and other.dtype == x.dtype and not same(other, x)


def arrays(replay: Replay, values: Sequence[Value]) -> Iterator[Proposal]:
    """Mutations in which the whole array is another one, or a norm of another one."""
    array, jax = array_of(replay), compared_in(replay)
    real = array.x.is_floating_point()
    those = [each for each in values if each.x.is_floating_point() == real and each.x.shape == array.x.shape]
    for value in those:
        if jax is None or (off(host(value.x), jax) <= NEARLY if real else np.array_equal(host(value.x), jax)):
            yield reads(IN_PLACE, array, value)
    if jax is not None and jax.size > 1 and not real and (jax == jax.flat[0]).all():
        constant = torch.full_like(array.x, jax.flat[0].item())
        yield propose(CONSTANT, array.target, partial(array.edit, lambda _: constant), value=jax.flat[0].item())
    for name, norm in replay.module.named_children():
        for value in those[-MOST_NORMED:] if keeps_a_shape(norm) else ():
            yield reads(NORMED, array, value, lambda x, other, norm=norm: norm(other.clone()), name)


def compared_in(replay: Replay) -> np.ndarray | None:
    """jax's array, if it has the shape of torch's."""
    jax = replay.compared.get(replay.place)
    return jax if jax is not None and jax.shape == replay.wanted.shape else None


def made_before(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations in which operands are outputs of earlier operations: first in the user's code, then in torch's own."""
    once = [op for op in ops if len(op.runs) == 1]
    for inside in (False, True):
        before: list[Value] = []
        for op in (op for op in once if is_inside(op.place) == inside):
            most = MOST_IN_SUMS if op.name == "add" else MOST_BEFORE
            for slot in operands(op):
                fitting = [value for value in before if fits(slot.x, value.x, along_last=op.name in REDUCTIONS)]
                yield from (reads(OPERAND, slot, value) for value in fitting[: -most - 1 : -1])
            if isinstance(op.output, torch.Tensor) and not any(same(op.output, value.x) for value in before):
                before.append(Value("plain", (op.target,), op.output, {}))


def last_in_sums(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of a sum that runs in every layer: one operand is the last output of another operation."""
    for total in (op for op in ops if op.name == "add" and len(op.runs) > 1 and op.output.ndim > 1):
        shape, before = total.output.shape, dict[int, Op]()
        for op in ops if [of_reals(x) and x.shape == shape for x in total.args[:2]] == [True, True] else ():
            numbers = [run.number for run in op.runs if run.number < total.run.number]
            if numbers and is_real(op) and op.output.shape == shape:
                before[numbers[-1]] = op
        for op, i in product((op for _, op in sorted(before.items())[-MOST_BEFORE:]), range(2)):
            if not same(op.output, total.args[i]):
                yield propose(LAST, (total.target, op.target), partial(with_last, total, i, op), ordinal=ORDINALS[i])


def with_last(total: Op, i: int, other: Op) -> Rewrite:
    """Rewrite in which operand `i` of `total` is the last output of `other`."""
    gave: list[torch.Tensor] = []
    return Rewrite({other.place: noting(gave), total.place: with_operand(i, lambda _: gave[0])})


def additions(replay: Replay) -> Iterator[Proposal]:
    """Mutations that add an array where torch adds none: to the array itself, or to the input of a norm or a linear layer."""
    array, jax = array_of(replay), compared_in(replay)
    parameters = (Value("plain", (name,), x, {}) for name, x in replay.module.named_parameters() if x.ndim > 1)
    given = [*given_in(replay), *parameters]
    for value in [*given, *made_in(replay.listed)] if of_reals(array.x) else ():
        if jax is not None and may_be_added(array.x, value.x) and off(host(array.x + value.x), jax) <= NEARLY:
            yield reads(ADDED, array, value, torch.add)
    for op in replay.operations:
        for slot in operands(op, 1) if op.name in (*NORMALIZED, "linear") and len(op.runs) == 1 else ():
            yield from (reads(MORE, slot, value, torch.add) for value in given if may_be_added(slot.x, value.x))


def may_be_added(x: torch.Tensor, other: torch.Tensor) -> bool:
    """True for another float array with at least two axes that broadcasts to `x`, with the same last axis."""
    along = zip(other.shape[::-1], x.shape[::-1], strict=False)
    fits = other.is_floating_point() and 1 < other.ndim <= x.ndim and other.shape[-1] == x.shape[-1]
    return fits and all(one in (1, many) for one, many in along) and not same(other, x)
