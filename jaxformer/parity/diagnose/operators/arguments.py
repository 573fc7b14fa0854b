"""Mutations of an operation's arguments: another number, switch, size or slice; a multiple of an operand, or a number added to
one; the number that a tensor is compared with."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose.calls import named, names_of
from jaxformer.parity.diagnose.computes import Compute, with_argument, with_operand
from jaxformer.parity.diagnose.functions import COMPARING, WINDOWED, is_real
from jaxformer.parity.diagnose.modules import in_layers
from jaxformer.parity.diagnose.mutation import Change, Edit, Free, Proposal, grouped, propose
from jaxformer.parity.diagnose.numbers_and_orders import BASES, ORDINALS
from jaxformer.parity.diagnose.operators import parameters
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import that_differ
from jaxformer.parity.diagnose.trace import LIBRARY, Op, Place, Rewrite, both
from jaxformer.parity.trace.call_sites import last

SMALL = 0.01
"""Numbers below this are taken for epsilons."""
MOST: dict[str, int] = {"topk": 32} | dict.fromkeys(WINDOWED, 8)
"""Functions -> the largest integers that are tried: of entries that are chosen; of windows, strides, pads and dilations."""
CLIPS = ("clamp", "clip")
OF_AXES = ("kernel_size", "stride", "padding", "dilation")
"""Arguments that are one integer for all axes, or one for each."""
BESIDE = (0.99, 1.01)
"""Factors of nearby values: where one of them gives the same array, the number acts in steps."""
NUMBER = Change("arguments.number", lambda args: NAMED if args["name"] else "has {value} for {was:.9g} there")
NAMED = "has {name} {value} for {was:.9g} there"
OTHER = Change(
    "arguments.other", lambda args: "has {name} {other} for {was}" if "name" in args else "has {other} for {was} there"
)
OTHER_END = Change(
    "arguments.other_end", {"min": "bounds it from below by that (`min`)", "max": "bounds it from above by that (`max`)"}
)
WITHIN = Change("arguments.within", "limits it to {middle:g} +- {value}", "limits {0} to {middle:g} +- {was:g}")
WITHOUT = Change("arguments.without", {"bias": "does so without the bias", "tensor": "does so without {at}"})


def proposals(op: Op) -> Iterator[Proposal]:
    """Mutations of each argument: another number, switch, size or slice, or a tensor left out."""
    yield from bounds(op)
    yield from other_end(op)
    for at, was in [*enumerate(op.args), *op.kwargs.items()]:
        if isinstance(was, float) and op.name in COMPARING:
            continue  # `thresholds` solves for it, by the values of the tensor
        if isinstance(was, float):
            yield number(op, at, was)
        elif isinstance(was, torch.Tensor) and at not in (0, 1) and op.name != "where":
            yield op.instead(WITHOUT, with_argument(at, None), how="bias" if was.ndim == 1 else "tensor", at=at)
        else:
            name = name_of(op.function, at) if op.name in WINDOWED or type(was) is bool else ""
            for other in other_values(was, op.name, int(op.name[-2]) if name in OF_AXES else 1):
                is_factor = type(other) is int and other != 0 and is_real(op)
                near = tuple(partial(op.rewrite, with_argument(at, c * other)) for c in BESIDE if is_factor)
                said = {"other": shown(other), "was": shown(was), "at": at} | ({"name": name} if name else {})
                yield op.instead(OTHER, with_argument(at, other), near, **said)
            if type(was) is int and op.name in ARITHMETIC and is_real(op):
                yield number(op, at, was)
    if op.name == "scaled_dot_product_attention" and op.kwargs.get("scale") is None:
        yield number(op, "scale", op.args[0].shape[-1] ** -0.5)


def bounds(op: Op) -> Iterator[Proposal]:
    """Mutation of both bounds of a clip around 0 or 1, as in `ratio.clamp(1 - c, 1 + c)`; `c` is solved for."""
    given = named(op.function, op.args, op.kwargs) if op.name in CLIPS else {}
    low, high = given.get("min"), given.get("max")
    if isinstance(low, float) and isinstance(high, float) and (middle := round((low + high) / 2, 9)) in (0, 1):
        half = (high - low) / 2
        yield op.solving(WITHIN, Free(half, sure=True), partial(within, middle), was=half, middle=middle)


def other_end(op: Op) -> Iterator[Proposal]:
    """Mutation of a clip with one bound: it is the other one."""
    given = named(op.function, op.args, op.kwargs) if op.name in CLIPS else {}
    ends = [name for name in ("min", "max") if given.get(name) is not None]
    if len(ends) == 1:
        (own,), (other,) = ends, {"min", "max"} - {*ends}
        yield op.instead(OTHER_END, lambda f, a, k, n: f(a[0], **{other: named(f, a, k)[own]}), how=other)


def within(middle: float, half: float) -> Compute:
    """Limit the operand to `middle` plus or minus `half`."""
    return lambda f, a, k, n: f(a[0], middle - half, middle + half)


def epsilons(op: Op) -> Iterator[Proposal]:
    """Mutations of small positive numbers, epsilons as a rule, among the positional arguments."""
    yield from (number(op, at, was) for at, was in epsilons_of(op))


def epsilons_of(op: Op) -> Iterator[tuple[int, float]]:
    """Small positive numbers among the positional arguments, by their positions."""
    yield from ((at, was) for at, was in enumerate(op.args) if isinstance(was, float) and 0 < was < SMALL)


def number(op: Op, at: int | str, was: float) -> Proposal:
    """Propose another number for an argument; the number is solved for."""
    return op.solving(NUMBER, Free(was), partial(with_argument, at), was=was, at=at, name=name_of(op.function, at))


def name_of(function: Callable[..., Any], at: int | str) -> str:
    """Name of an argument; '' where torch gives it none."""
    if isinstance(at, str):
        return at
    try:
        return dict(enumerate(names_of(function))).get(at, "")
    except (TypeError, ValueError):  # functions written in C++ have no signature
        return ""


def other_values(value: Any, name: str, axes: int = 1) -> list[Any]:
    """Values to try in place of a boolean, an integer, a slice, or a short tuple or list of them; none for other values. An
    integer may stand for one on each of several axes."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        ends = {0: [-1], -1: [0]}.get(value, []) if name == "getitem" else []
        others = range(1, MOST.get(name, 0) + 1) if value > 0 else ()
        of_one = other_values((value,) * axes, name) if axes > 1 else []
        return [*ends, value - 1, value + 1, *(each for each in others if abs(each - value) > 1), *of_one]
    if isinstance(value, slice):
        return [slice(*ends, value.step) for ends in other_ends(value.start, value.stop)]
    if type(value) in (tuple, list) and 0 < len(value) <= 4:
        items = list(value)
        one = [[*items[:i], other, *items[i + 1 :]] for i, each in enumerate(items) for other in other_values(each, name)]
        alike = len(items) > 1 and isinstance(items[0], int) and items.count(items[0]) == len(items)
        all_of_them = [[other] * len(items) for other in other_values(items[0], name)] if alike else []
        return [type(value)(each) for each in all_of_them + one]
    return []


def other_ends(start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
    """Other ends of a slice: one end moved by 1; or as many entries left out at the other end, `[2:]` for `[:-2]`."""
    yield from ((start + more, stop) for more in (-1, 1) if isinstance(start, int))
    yield from ((start, stop + more) for more in (-1, 1) if isinstance(stop, int))
    if start is None and isinstance(stop, int) and stop < 0:
        yield -stop, None
    if stop is None and isinstance(start, int) and start > 0:
        yield None, -start


def shown(value: Any) -> str:
    """Python's text of a value; slices as they stand in brackets."""
    if isinstance(value, slice):
        return ":".join("" if each is None else str(each) for each in (value.start, value.stop))
    if isinstance(value, tuple) and any(isinstance(each, slice) for each in value):
        return f"[{', '.join(map(shown, value))}]"
    return "..." if value is ... else repr(value)


DIVIDED, ROOTED = ("div", "truediv"), ("sqrt", "rsqrt", "log", "reciprocal")
GATING = ("sigmoid", "tanh", "softplus", "exp")
ARITHMETIC = {"add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rtruediv", "rdiv", "pow", "rpow"}
"""Operations whose integer arguments are numbers to compute with, not axes or sizes."""

SWAPPED = Change(
    "numbers.swapped", "has {other:g} for {was:g} in {0}, and {was:g} for {other:g} in {1}", "computes {0} and {1}"
)
EACH_TIME = Change("numbers.literal", "has {value} for {was:g} there, each time")
LOGARITHM = Change("numbers.logarithm", "has log({base:g}) for log({was:g})")
MULTIPLE = Change("numbers.multiple", "multiplies its {ordinal} operand by {value}")
OFFSET = Change("numbers.offset", "adds {value} to its {ordinal} operand")


def literals(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of a number that several operations of one line share, as in `20 * tanh(x / 20)`, changed in all of them; and
    of the base of a logarithm, as in `exp(-log(10000) i / n)`."""
    for those in grouped(numbers_in(ops), lambda each: (each[0].position[:2], each[2])).values():
        op, _, value = those[-1]
        if len({op.place for op, *_ in those}) > 1:
            yield propose(EACH_TIME, op.target, partial(with_literal, those), Free(value, sure=True), was=value)
    weights = [each for each in numbers_in(ops) if each[0].output.numel() == 1]
    for (op, at, was), (beside, place, other) in combinations(weights, 2):
        if was != other and op.place != beside.place:
            both = {op.place: with_argument(at, other), beside.place: with_argument(place, was)}
            yield propose(SWAPPED, (op.target, beside.target), partial(Rewrite, both), was=was, other=other)
    for op, at, value in numbers_in(ops):
        was = next((each for each in BASES if math.isclose(abs(value), math.log(each))), None)
        for base in BASES if was else ():
            if base != was:
                yield op.instead(LOGARITHM, with_argument(at, math.copysign(math.log(base), value)), base=base, was=was)


def numbers_in(ops: Sequence[Op]) -> Iterator[tuple[Op, int, float]]:
    """Numbers that arithmetic operations read: each with its operation and its position among the arguments."""
    for op in ops:
        for at, value in enumerate(op.args):
            if type(value) in (int, float) and op.name in ARITHMETIC:
                yield op, at, float(value)


def with_literal(those: Sequence[tuple[Op, int, float]], number: float) -> Rewrite:
    """Rewrite in which all these arguments are the same other number."""
    return Rewrite({op.place: with_argument(at, number) for op, at, _ in those})


MOST_PLACES = 64
"""Largest number of places with the same number of which each is changed by itself."""


class Shared(NamedTuple):
    """Number that several places hold."""

    number: float
    labels: Sequence[str]
    edit: Callable[[Collection[int], Any], Edit]
    """edit(places, number) -> the edit in which these places hold another number."""
    op: Op | None = None
    """Operation whose runs the places are; None for settings."""


def in_some(
    replay: Replay, beside: Callable[[], Edit] = nullcontext, moved: Callable[[], Edit] = nullcontext
) -> Iterator[Proposal]:
    """Mutations of a number that several modules, or several runs of an operation, hold, such as the epsilon of norms: in those
    of them whose effects together come nearest to jax's array.

    `beside`: edit of torch's code that applies too; `moved`: the same edit with its own free number a little larger.
    """
    jax, torchs, more = replay.compared.get(replay.place), replay.tried(beside()), replay.tried(moved())
    if jax is None or torchs is None or jax.dtype.kind != "f" or not np.isfinite(jax).all():
        return
    for was, labels, edit, op in (*shared_settings(replay), *shared_literals(replay)):
        if was and 2 < len(labels) <= MOST_PLACES:
            chosen = that_differ(
                [replay.tried(both(edit([i], 2 * was), beside())) for i in range(len(labels))], torchs, jax, more
            )
            if 0 < len(chosen) < len(labels):
                those = in_layers(labels, {labels[i] for i in chosen})
                targets = those if op is None else replace(op.target, label=f"{op.source} of {' and '.join(those)}")
                yield propose(parameters.NUMBERS, targets, partial(edit, chosen), Free(was, sure=True), was=was)


def shared_settings(replay: Replay) -> Iterator[Shared]:
    """Numbers that are settings of several modules, by the name of the setting."""
    modules = (each for group in parameters.alike(replay) for each in group)
    every = (each for name, module in modules for each in parameters.settings(replay, {}, module, name))
    numbers = (each for each in every if each.mutation.change == parameters.NUMBER)
    held = grouped(numbers, lambda each: (last(each.mutation.targets[0].label), each.free.start))
    for (_, was), those in held.items():
        labels = [each.mutation.targets[0].label for each in those]
        yield Shared(
            was, labels, lambda places, number, those=those: parameters.all_of([those[i].edits for i in places], number)
        )


def shared_literals(replay: Replay) -> Iterator[Shared]:
    """Epsilons that an operation of the user's code is given each time that it runs, in as many modules."""
    names = {id(module): name for name, module in replay.module.named_modules()}
    for op in (each for each in replay.operations if not each.position[0].co_filename.startswith(LIBRARY)):
        labels = [names.get(run.module, "") for run in op.runs]
        for at, was in epsilons_of(op) if len({*labels}) == len(labels) else ():
            yield Shared(was, labels, partial(in_runs, op.place, at), op)


def in_runs(place: Place, at: int, runs: Collection[int], number: float) -> Rewrite:
    """Rewrite in which an argument is another number in these runs of an operation."""
    compute = with_argument(at, number)
    return Rewrite({place: lambda f, a, k, n: compute(f, a, k, n) if n in runs else f(*a, **k)})


def operand_numbers(op: Op) -> Iterator[Proposal]:
    """Mutations that multiply one operand of a sum or difference, or add a number to a divisor or to the operand of a root, a
    logarithm or a gate; the number is solved for."""
    if not is_real(op):
        return
    tensors = [i for i, x in enumerate(op.args[:2]) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for i in tensors if op.name in ("add", "sub") and len(tensors) == 2 else ():
        yield op.solving(MULTIPLE, Free(1.0), lambda c, i=i: with_operand(i, lambda x: x * c), ordinal=ORDINALS[i])
    at = 1 if op.name in DIVIDED else 0
    if at in tensors and op.name in DIVIDED + ROOTED + GATING:
        yield op.solving(OFFSET, Free(0.0), lambda c: with_operand(at, lambda x: x + c), ordinal=ORDINALS[at])


MOST_VALUES = 10_000
"""Largest number of distinct values in a compared tensor."""
THRESHOLD = Change("thresholds.number", "compares with another number, such as {value}")


def thresholds(op: Op) -> Iterator[Proposal]:
    """Mutations of the number that a tensor is compared with. It acts only where it passes one of the tensor's values: the
    search goes through the gaps between these."""
    x, number = (*op.args, None, None)[:2]
    if op.name in COMPARING and isinstance(x, torch.Tensor) and isinstance(number, (int, float)) and type(number) is not bool:
        values = torch.cat([run.args[0].double().flatten() for run in op.runs]).unique()
        if 1 < len(values) <= MOST_VALUES and values.isfinite().all():
            free = Free(float(number), steps=tuple(values.tolist()))
            yield op.solving(THRESHOLD, free, partial(with_argument, 1), was=number)
