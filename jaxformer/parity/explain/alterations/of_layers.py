"""What may be otherwise in modules: their settings and tensors; of layers that are alike, in every one of them first."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from jaxformer.parity.explain.alterations import of_modules
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Inside, together
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_MODULES = 40
WAYS = [*of_modules.READINGS]
Kind = Callable[[Any, str], Iterator[Alteration | Dial]]
Group = list[tuple[str, Any]]
"""Modules that stand at the same place of alike layers, by their names."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of the module, and of those inside of it that jax has not, the plain ones first."""
    left_out, settings, _ = kinds(rerun)
    yield from of_all(rerun, left_out)
    yield from of_modules.taken_for(rerun.module)
    yield from of_all(rerun, settings)


def readings_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """How the same modules may read their tensors."""
    yield from of_all(rerun, kinds(rerun)[2])


def of_all(rerun: Rerun, *several: Kind) -> Iterator[Alteration | Dial]:
    """These kinds, one behind another, of all modules."""
    groups = alike(rerun)
    for kind in several:
        for group in groups:
            yield from together_or_alone(group, kind)


def of_one(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of layers that are alike, of one of them alone."""
    groups = [group for group in alike(rerun) if len(group) > 1]
    for kind in kinds(rerun):
        for name, module in (each for group in groups for each in group):
            yield from kind(module, name)


def kinds(rerun: Rerun) -> tuple[Kind, Kind, Kind]:
    """What is left out, then settings, a configuration's with the first module that has it, then how a tensor is read."""
    first: dict[int, str] = {}
    return (
        lambda module, name: of_modules.readings(module, name, WAYS[:1]),
        lambda module, name: of_modules.settings(module, name, rerun.read, first),
        lambda module, name: of_modules.readings(module, name, WAYS[1:]),
    )


def alike(rerun: Rerun) -> list[Group]:
    """Modules by their places, numbers of layers aside."""
    own = rerun.module
    inner = {site.path.removeprefix(f"{rerun.owner.path}.") for site in rerun.borders if site in rerun.given}
    names = [name for name, _ in own.named_modules() if not any(name == path or name.startswith(f"{path}.") for path in inner)]
    found: dict[Any, Group] = {}
    for name in names:
        module = own.get_submodule(name)
        found.setdefault((starred(name), type(module)), []).append((name, module))
    groups = [*found.values()]
    return groups if len(groups) <= MOST_MODULES else [each for each in groups if each[0][0].count(".") < 3]


def starred(name: str) -> str:
    """'layers.*.norm'"""
    return re.sub(r"\b\d+\b", "*", name)


def together_or_alone(group: Group, kind: Kind) -> Iterator[Alteration | Dial]:
    """The same thing in all of them at once."""
    (name, module), *others = group
    if not others:
        yield from kind(module, name)
        return
    those = [{said(each): each for each in kind(module, starred(name))} for _, module in group]
    for says, first in those[0].items():
        each: Any = [other[says] for other in those if type(other.get(says)) is type(first)]
        if len(each) < len(group):
            continue
        if isinstance(first, Dial):
            yield first._replace(inside=lambda number, each=each: together(*(one.inside(number) for one in each)))
        else:
            near = tuple(partial(all_of, several) for several in zip(*(one.near for one in each), strict=True))
            yield first._replace(inside=partial(all_of, [one.inside for one in each]), near=near)


def all_of(several: Iterable[Callable[[], Inside]]) -> Inside:
    """Inside, all of them."""
    return together(*(each() for each in several))


def said(alteration: Alteration | Dial) -> tuple[str, str]:
    """In words."""
    return alteration.torch, alteration.jax
