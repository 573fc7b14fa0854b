"""What may be otherwise in one operation of torch's code."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.operations import Compute, Operation
from jaxformer.parity.explain.alterations.other_arguments import other_values, shown
from jaxformer.parity.explain.alterations.other_functions import (
    ACTIVATIONS,
    EPSILON_BEHIND_ROOT,
    EXPONENTIALS,
    NORMS,
    PLAIN_NAMES,
    POOLINGS,
    WINDOWED,
    corrected,
    in_order,
    of_windows,
    padded,
    shifted,
    with_operand,
)

REDUCTIONS = {"mean", "sum", "amax", "amin"}
Kind = Callable[[Operation], Iterator[Alteration | Dial]]
OTHERWISE = {
    "add": {"multiplies the two": torch.mul, "takes the one less the other": torch.sub},
    "sub": {"adds the two": torch.add},
    "mul": {"adds the two": torch.add, "divides the one by the other": torch.div},
    "div": {"multiplies the two": torch.mul},
    "truediv": {"multiplies the two": torch.mul},
    "maximum": {"takes the smaller": torch.minimum},
    "minimum": {"takes the larger": torch.maximum},
}
"""Of two tensors, what may be taken for what."""
CONTRARY = {"lt": torch.le, "le": torch.lt, "gt": torch.ge, "ge": torch.gt}
RESHAPES = {"reshape", "view", "flatten", "unflatten"}
MOVES = RESHAPES | {"transpose", "permute", "contiguous", "to", "expand", "unsqueeze", "squeeze", "getitem", "get", "clone"}
"""Operations that compute nothing."""
JOINING = {"add", "mul", "sub", "div", "truediv", "maximum", "minimum", "and", "or", "logical_and", "logical_or"}
"""Operations of two tensors, entry by entry."""
MOST_AXES, MOST_PARTS = 5, 12
SMALL = 0.01
BESIDE = (0.99, 1.01)
"""How far a number is moved that may act in steps."""
SWAPPED = {"sub", "div", "truediv", "matmul", "rsub", "where", "pow"}
VARIANCES = ("var", "std", "var_mean", "std_mean")
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")


def alterations_of(operation: Operation) -> Iterator[Alteration | Dial]:
    """The plain ones first."""
    yield from of_kinds(operation, KINDS)


def of_kinds(operation: Operation, kinds: tuple[Kind, ...]) -> Iterator[Alteration | Dial]:
    """One after the other; an operation may have other arguments than most."""
    for kind in kinds:
        try:
            yield from kind(operation)
        except (IndexError, TypeError, ValueError, RuntimeError):
            continue


def instead(operation: Operation, says: str, compute: Compute) -> Alteration:
    """Something else is computed there."""
    return Alteration(f"computes {operation.source}", says, lambda: operation.inside(compute))


def others(operation: Operation) -> Iterator[Alteration | Dial]:
    """Another function of the same kind."""
    name = operation.name
    known = PLAIN_NAMES.get(name, name)
    if known in ACTIVATIONS:
        for other, function in ACTIVATIONS.items():
            alike = ("softmax" in other) <= (known in ("softmax", "sigmoid"))
            if other != known and alike and function(operation.args[0]).any():  # 0 everywhere is told by what is left out
                yield instead(operation, f"{other} there", lambda f, a, k, n, function=function: function(a[0]))
    for other, function in EXPONENTIALS.items() if name == "exp" else ():
        yield instead(operation, f"{other} there", lambda f, a, k, n, function=function: function(a[0]))
    if name in CONTRARY:
        yield instead(operation, f"{CONTRARY[name].__name__} there", lambda f, a, k, n: CONTRARY[name](*a))
    if name in OTHERWISE and sum(isinstance(each, torch.Tensor) for each in operation.args[:2]) == 2:
        for says, other in OTHERWISE[name].items():
            yield instead(operation, says, lambda f, a, k, n, other=other: other(*a[:2]))
    for says, norm in NORMS.get(name, {}).items():
        yield instead(operation, says, lambda f, a, k, n, norm=norm: norm(*a, **k))
    yield from epsilons(operation)
    if name in WINDOWED:
        says = "counts what it pads" if name.startswith("avg") else "pads less before than behind, as 'SAME' does"
        yield instead(operation, says, lambda f, a, k, n: padded(f, a, k, "same"))
        for where in ("behind", "before"):
            yield instead(operation, f"pads {where} alone", lambda f, a, k, n, where=where: padded(f, a, k, where))
    if name.startswith("max_pool"):
        yield instead(operation, "pads with 0", lambda f, a, k, n: padded(f, a, k, "with 0"))
    for says, other in of_windows(name).items():
        yield instead(operation, says, lambda f, a, k, n, other=other: other(*a, **k))
    for other in REDUCTIONS - {name} if name in REDUCTIONS else ():
        yield instead(operation, f"{other} there", lambda f, a, k, n, other=other: getattr(torch, other)(*a, **k))
    for correction, says in ((0, "the biased one"), (1, "the unbiased one")) if name in VARIANCES else ():
        yield instead(operation, says, partial(corrected, correction))
    if name == "interpolate":
        yield from resizings(operation)


def epsilons(operation: Operation) -> Iterator[Dial]:
    """Of a norm, behind the root."""
    if function := EPSILON_BEHIND_ROOT.get(operation.name):
        start = next((each for each in (*operation.args, *operation.kwargs.values()) if type(each) is float), 1e-5)
        yield Dial(
            f"epsilon {start:g} under the root",
            "epsilon {} behind the root",
            start,
            lambda epsilon: operation.inside(lambda f, a, k, n: function(*a, **(k | {"eps": epsilon}))),
            sure=True,
        )


def resizings(operation: Operation) -> Iterator[Alteration]:
    """Other ways to resize pictures."""
    for mode, more in itertools.product(MODES, ({}, {"antialias": True}, {"align_corners": True})):
        how = {"mode": mode, "align_corners": None, "antialias": False} | more
        says = f"{mode}{''.join(f', {each}' for each in more)} there"
        yield instead(operation, says, lambda f, a, k, n, how=how: f(*a, **(k | how)))


def arguments(operation: Operation) -> Iterator[Alteration | Dial]:
    """Another number, switch or word; a tensor left out."""
    places = [*range(len(operation.args)), *operation.kwargs]
    for at in places:
        value = operation.args[at] if isinstance(at, int) else operation.kwargs[at]
        if isinstance(value, float):
            yield number(operation, at, value)
        elif (
            isinstance(value, torch.Tensor) and at != 0 and (isinstance(at, str) or at > 1) and operation.name not in ("where",)
        ):
            yield instead(operation, f"without {'its bias' if value.ndim == 1 else at}", with_argument(at, None))
        else:
            for other in other_values(value, operation.name):
                said = f"with {shown(other)} for {shown(value)} there"
                near = tuple(
                    partial(operation.inside, with_argument(at, c * other)) for c in BESIDE if is_factor(operation, other)
                )
                yield instead(operation, said, with_argument(at, other))._replace(near=near)
    if operation.name == "scaled_dot_product_attention" and operation.kwargs.get("scale") is None:
        yield number(operation, "scale", operation.args[0].shape[-1] ** -0.5)


def number(operation: Operation, at: int | str, value: float) -> Dial:
    """A number among its arguments."""
    return Dial(
        f"computes {operation.source}",
        f"with {{}} for {value:.9g} there",
        value,
        lambda other: operation.inside(with_argument(at, other)),
    )


def small_numbers(operation: Operation) -> Iterator[Dial]:
    """Another epsilon."""
    for at, value in enumerate(operation.args):
        if isinstance(value, float) and 0 < value < SMALL:
            yield number(operation, at, value)


def is_factor(operation: Operation, value: Any) -> bool:
    """Whether it is a whole number, and not 0, in what is computed of floats."""
    return type(value) is int and value != 0 and is_real(operation)


def with_argument(at: int | str, other: Any) -> Compute:
    """The same function with another argument."""

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        if isinstance(at, str):
            return function(*args, **(kwargs | {at: other}))
        return function(*args[:at], other, *args[at + 1 :], **kwargs)

    return compute


def without(operation: Operation) -> Iterator[Alteration]:
    """It is left out: one of its tensors goes on as it is."""
    if not isinstance(operation.output, torch.Tensor) or operation.name in ("clone", "contiguous", "to", "detach", "float"):
        return
    tensors = [i for i, each in enumerate(operation.args) if isinstance(each, torch.Tensor)]
    both = len(tensors) > 1 and operation.name in JOINING
    for i in tensors:
        if both or operation.args[i].shape == operation.output.shape:
            says = f"has its {('first', 'second', 'third')[i]} operand alone" if len(tensors) > 1 else "leaves it out"
            yield instead(operation, says, partial(operand, i))


def operand(number: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """One of the arguments, as large as the output is."""
    joined = function.__name__.strip("_") in JOINING
    others = [each.shape for each in args if isinstance(each, torch.Tensor)]
    return args[number].expand(torch.broadcast_shapes(*others)) if joined else args[number]


def twice(operation: Operation) -> Iterator[Alteration]:
    """What is done is done again."""
    first, output = next(iter(operation.args), None), operation.output
    if not isinstance(first, torch.Tensor) or not isinstance(output, torch.Tensor):
        return
    if first.is_floating_point() and first.shape == output.shape and operation.name != "linear":
        yield instead(operation, "does it twice", lambda f, a, k, n: f(f(*a, **k), *a[1:], **k))


def exchanged(operation: Operation) -> Iterator[Alteration]:
    """Its operands exchanged."""
    one, other = [None, None, *operation.args][-2:]
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    if operation.name in SWAPPED and tensors and tuple(one.shape) == tuple(other.shape):
        yield instead(operation, "exchanges the two", lambda f, a, k, n: f(*a[:-2], a[-1], a[-2], **k))
    if operation.name == "glu":
        axis = next(iter(operation.args[1:]), operation.kwargs.get("dim", -1))
        halves = partial(with_operand, 0, lambda x: torch.cat(x.chunk(2, axis)[::-1], axis))
        yield instead(operation, "exchanges its halves", halves)


def operands(operation: Operation) -> Iterator[Alteration]:
    """One of its operands with its mean taken off."""
    if not is_real(operation) or operation.name in ACTIVATIONS:
        return
    for i, x in enumerate(operation.args[:2]):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1 and x.shape[-1] > 2:
            says = f"takes the mean off its {('first', 'second')[i]} operand"
            yield instead(operation, says, partial(with_operand, i, lambda x: x - x.mean(-1, keepdim=True)))


def outputs(operation: Operation) -> Iterator[Alteration]:
    """Integers moved, booleans inverted, parts in another order, rows later or earlier."""
    x = operation.output
    if isinstance(x, (tuple, list)):
        for order in [*itertools.permutations(range(len(x)))][1:] if len(x) < MOST_AXES else ():
            says = f"takes its parts in the order {', '.join(map(str, order))}"
            yield instead(operation, says, lambda f, a, k, n, order=order: in_order(f(*a, **k), order))
        for one, other in itertools.combinations(range(len(x)), 2) if MOST_AXES <= len(x) <= MOST_PARTS else ():
            order = [{one: other, other: one}.get(i, i) for i in range(len(x))]
            says = f"takes its parts {one} and {other} for one another"
            yield instead(operation, says, lambda f, a, k, n, order=order: in_order(f(*a, **k), order))
    elif x.dtype == torch.bool:
        yield instead(operation, "has the contrary", lambda f, a, k, n: ~f(*a, **k))
    elif not x.is_floating_point() and not x.is_complex():
        for more in (1, -1, 2):
            yield instead(operation, f"has {more:+d} on it", lambda f, a, k, n, more=more: f(*a, **k) + more)
    elif x.ndim > 2 and x.shape[1] > 1:
        for axis, (more, says) in itertools.product((1, 2), ((1, "one later"), (-1, "one earlier"))):
            for gap in ("", ", with 0 in the gap")[axis - 1 :]:
                yield instead(operation, f"has it {says} along axis {axis}{gap}", partial(shifted, (axis, more), bool(gap)))


def poolings(operation: Operation) -> Iterator[Alteration]:
    """Another way to make one of many."""
    x, y = operation.args[0] if operation.args else None, operation.output
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.ndim != y.ndim + 1 or not y.is_floating_point():
        return
    if operation.name not in ("getitem", "mean", "sum", "select", "amax"):
        return
    for axis in (axis for axis in range(x.ndim) if x.shape[:axis] + x.shape[axis + 1 :] == y.shape):
        for says, pool in POOLINGS.items():
            yield instead(operation, f"takes {says} of axis {axis}", lambda f, a, k, n, pool=pool, axis=axis: pool(a[0], axis))


def is_activation(operation: Operation) -> bool:
    """Whether it is one."""
    return PLAIN_NAMES.get(operation.name, operation.name) in ACTIVATIONS


def is_real(operation: Operation) -> bool:
    """Whether it gives one tensor of floats, and computes it."""
    x = operation.output
    return isinstance(x, torch.Tensor) and x.is_floating_point() and operation.name not in MOVES


KINDS: tuple[Kind, ...] = (others, poolings, arguments, without, twice, exchanged, operands, outputs)
"""The plain ones first."""
