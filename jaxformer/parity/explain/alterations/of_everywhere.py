"""What may be otherwise in every place where torch's code calls the same function: a port has one helper for all of them."""

from collections.abc import Iterator
from typing import Any

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.of_axes import KINDS as AXES
from jaxformer.parity.explain.alterations.of_axes import REDUCING
from jaxformer.parity.explain.alterations.of_operations import arguments, of_kinds, others
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.other_functions import ACTIVATIONS, NORMS, PLAIN_NAMES
from jaxformer.parity.explain.alterations.rerun import Rerun


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of activations, norms and what is added up, where they stand in several places."""
    found: dict[str, list[Operation]] = {}
    for operation in rerun.operations:
        if PLAIN_NAMES.get(operation.name, operation.name) in {*ACTIVATIONS, *NORMS, *REDUCING}:
            found.setdefault(operation.name, []).append(operation)
    for name, those in found.items():
        if len(those) > 1:
            yield from of_every(name, those)


def of_every(name: str, those: list[Operation]) -> Iterator[Alteration | Dial]:
    """The same change of each of them."""
    for each in zip(*(changes(operation) for operation in those), strict=False):
        first: Any = each[0]
        if any(other.jax != first.jax for other in each):
            return
        says = f"computes {name}, in {len(those)} places"
        if isinstance(first, Dial):
            yield first._replace(
                torch=f"{first.torch}, in {len(those)} places",
                inside=lambda number, each=each: merged([one.inside(number) for one in each]),
            )
        else:
            yield Alteration(says, first.jax, lambda each=each: merged([one.inside() for one in each]))


def merged(several: list[Any]) -> Altered:
    """Inside, all of them: one inside of the other would not know its place."""
    return Altered({place: compute for each in several for place, compute in each.altered.items()})


def changes(operation: Operation) -> list[Alteration | Dial]:
    """Of one of them."""
    return [*of_kinds(operation, (others, *((arguments, *AXES) if operation.name in REDUCING else (numbers_of,))))]


def numbers_of(operation: Operation) -> Iterator[Dial]:
    """Its epsilon or the like."""
    for each in arguments(operation):
        if isinstance(each, Dial):
            yield each
