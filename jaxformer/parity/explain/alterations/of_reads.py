"""What may be otherwise in which array is read: another child's, the call's own input, a norm of a sum that was made before."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.numbers import NEARLY, off
from jaxformer.parity.explain.alterations.of_operands import MOST_BEFORE, ORDINALS, same
from jaxformer.parity.explain.alterations.of_operations import instead, is_real, with_operand
from jaxformer.parity.explain.alterations.of_places import keeps_a_shape
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

Arrays = list[tuple[str, torch.Tensor]]
"""In words, and what they are."""
MOST_RUNS = MOST_PARTS = 4
MOST_NORMED = 12
"""Arrays of which a norm may stand in the place of another."""
JOINING = ("cat", "concat", "stack")


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """The plain ones first."""
    given = [*given_in(rerun), *parts_in(rerun.listed)]
    made = [*made_in(rerun.listed)]
    yield from instead_of_it(rerun, [*given, *made])
    for operation in rerun.operations:
        if len(operation.runs) == 1:
            yield from read_instead(operation, given)
            yield from parts_instead(operation, [*given, *made[-MOST_BEFORE:]])


def made_in(operations: list[Operation]) -> Iterator[tuple[str, torch.Tensor]]:
    """What operations gave, one that runs a few times each time."""
    for each in operations:
        for number, run in enumerate(each.runs) if len(each.runs) <= MOST_RUNS else ():
            if isinstance(run.output, torch.Tensor):
                yield each.source + (f", time {number + 1} of {len(each.runs)}," if len(each.runs) > 1 else ""), run.output


def parts_in(operations: list[Operation]) -> Iterator[tuple[str, torch.Tensor]]:
    """Of what is split."""
    for each in operations:
        if len(each.runs) == 1 and isinstance(each.output, (tuple, list)) and len(each.output) <= MOST_PARTS:
            for number, x in enumerate(each.output):
                yield f"part {number + 1} of {each.source}", x


def given_in(rerun: Rerun) -> Iterator[tuple[str, torch.Tensor]]:
    """What the call is given, and what its children gave."""
    arrays = arrays_in(rerun.arguments)
    for number, x in enumerate(arrays):
        yield (f"what it is given as array {number + 1}" if len(arrays) > 1 else "what it is given"), x
    for site, x in rerun.given.items():
        if isinstance(x, torch.Tensor):
            yield f"what {str(site).removeprefix(f'{rerun.owner.path}.')} gives", x


def instead_of_it(rerun: Rerun, arrays: Arrays) -> Iterator[Alteration]:
    """In the place of the whole array; or a norm of it."""
    wanted = tuple(rerun.wanted.shape)
    those = [(says, x) for says, x in arrays if x.is_floating_point() and tuple(x.shape) == wanted]
    for says, x in those:
        if may_be_jaxs(rerun, x):
            yield Alteration("the array as it is", f"{says} in its place", lambda x=x: rerun.followed_by(lambda _: x.clone()))
    those = those[-MOST_NORMED:]
    norms = [(name, each) for name, each in rerun.module.named_children() if keeps_a_shape(each)]
    for name, norm in norms:
        for says, x in those:
            made = partial(of_another, norm, x)
            yield Alteration("the array as it is", f"{name} of {says} in its place", lambda made=made: rerun.followed_by(made))


def may_be_jaxs(rerun: Rerun, x: torch.Tensor) -> bool:
    """Whether it is jax's array, as far as that can be seen."""
    jax = rerun.compared.get(rerun.place)
    return jax is None or jax.shape != tuple(x.shape) or off(x.numpy(), jax) <= NEARLY


def of_another(norm: Any, x: torch.Tensor, array: torch.Tensor) -> torch.Tensor:
    """What a module makes of another array."""
    return norm(x.clone())


def read_instead(operation: Operation, arrays: Arrays) -> Iterator[Alteration]:
    """For one of its operands."""
    for i, x in enumerate(operation.args[:3]):
        if isinstance(x, torch.Tensor) and x.ndim and x.is_floating_point():
            for says, other in fitting(x, arrays):
                read = partial(with_operand, i, lambda x, other=other: other.clone())
                yield instead(operation, f"reads {says} for its {ORDINALS[i]} operand", read)


def last_in_sums(operations: list[Operation]) -> Iterator[Alteration]:
    """For an operand of a sum in every layer, what another operation gave last."""
    sums = [each for each in operations if each.name == "add" and len(each.runs) > 1 and has_two(each)]
    for total in sums:
        fit = [each for each in operations if is_real(each) and each.output.shape == total.output.shape]
        runs = {id(each): [run.number for run in each.runs if run.number < total.run.number] for each in fit}
        for other in sorted((each for each in fit if runs[id(each)]), key=lambda each: runs[id(each)][-1])[-MOST_BEFORE:]:
            for i in range(2):
                if not same(other.output, total.args[i]):
                    says = f"reads what {other.source} gave last for its {ORDINALS[i]} operand"
                    yield Alteration(f"computes {total.source}", says, partial(with_last, total, i, other))


def has_two(operation: Operation) -> bool:
    """Whether it adds two arrays of one shape."""
    shapes = [tuple(x.shape) for x in operation.args[:2] if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return shapes == [tuple(operation.output.shape)] * 2 and len(shapes[0]) > 1


def with_last(total: Operation, i: int, other: Operation) -> Altered:
    """Inside, an operand of one is what the other gave."""
    gave: dict[str, torch.Tensor] = {}

    def kept(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        gave["last"] = function(*args, **kwargs)
        return gave["last"].clone()

    return Altered({other.place: kept, total.place: partial(with_operand, i, lambda _: gave["last"])})


def parts_instead(operation: Operation, arrays: Arrays) -> Iterator[Alteration]:
    """For one of those that it puts together."""
    parts = operation.args[0] if operation.name in JOINING else ()
    for i, x in enumerate(parts):
        for says, other in fitting(x, arrays):
            read = partial(with_operand, 0, lambda parts, i=i, other=other: [*parts[:i], other.clone(), *parts[i + 1 :]])
            yield instead(operation, f"reads {says} for part {i + 1} of {len(parts)}", read)


def fitting(x: torch.Tensor, arrays: Arrays) -> Iterator[tuple[str, torch.Tensor]]:
    """Other arrays of the same shape and type."""
    for says, other in arrays:
        if other.shape == x.shape and other.dtype == x.dtype and not same(other, x):
            yield says, other
