"""Modules of one kind and size that are taken for one another: a norm used twice, and its neighbour never."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations, permutations
from typing import Any

from jaxformer.parity.capture.module_paths import parent
from jaxformer.parity.explain.alterations.altered import Alteration, together
from jaxformer.parity.explain.alterations.of_modules import replaced
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_TWINS = 4
"""Beside each other."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """One in the place of another, and two exchanged."""
    for those in twins(rerun.module):
        for (name, module), (other, its) in permutations(those, 2):
            says = f"{name} in its place", f"{other} in the place of {name}"
            yield Alteration(*says, partial(replaced, module, "forward", its.forward))
        for (name, module), (other, its) in combinations(those, 2):
            yield Alteration(f"{name} and {other} as they are", "the two exchanged", partial(exchanged, module, its))


@contextmanager
def exchanged(module: Any, other: Any) -> Iterator[None]:
    """Inside, each is called where the other one is: what it is given, and gives, is still its own."""
    with together(replaced(module, "forward", other.forward), replaced(other, "forward", module.forward)):
        yield


def twins(module: Any) -> Iterator[list[tuple[str, Any]]]:
    """Modules with parameters of one shape, in one module."""
    found: dict[Any, list[tuple[str, Any]]] = {}
    for name, each in module.named_modules():
        shapes = tuple(tuple(x.shape) for x in each.parameters())
        if name and shapes and not name.rpartition(".")[2].isdigit():
            found.setdefault((parent(name), type(each), shapes), []).append((name, each))
    yield from (those for those in found.values() if 1 < len(those) <= MOST_TWINS)
