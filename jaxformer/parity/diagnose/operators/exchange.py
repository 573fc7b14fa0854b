"""Mutations that exchange modules or tensors that are alike, everywhere or in one place, take one for another, or rotate
lists."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations, permutations
from typing import Any

import torch

from jaxformer.parity.diagnose.modules import held, path_of, replaced
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, propose, together
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.trace.call_sites import CALL, below, join, parent

MOST_CHILDREN = 6
MOST_TENSORS = 8
MOST_TWINS = 4
"""Largest number of modules of one kind and size beside each other."""
LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)

PLACES = {"here": "uses {0} and {1} as named", "everywhere": "uses {0} and {1} as named in every {kind}"}
SWAPPED = "exchanges the two"
CHILDREN = Change("exchange.children", SWAPPED, PLACES, subjects=2, reroutes=True)
TENSORS = Change("exchange.tensors", SWAPPED, PLACES, subjects=2, reroutes=True)
TWINS = Change("exchange.twins", SWAPPED, PLACES["here"], subjects=2, reroutes=True)
TWIN = Change("exchange.twin", "uses {1} in its place", "uses {0}")
TURNED = Change(
    "exchange.turned",
    {"second": "begins with the second of them", "last": "begins with the last of them"},
    "runs {0} in their order",
)

Named = Sequence[tuple[str, Any]]
"""Modules or tensors with their names."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations that exchange children or tensors in all modules of one kind, or begin lists with another entry."""
    own = path_of(replay)
    inner = {site.path for site in replay.given} - {own, CALL.path}
    modules: dict[type, list[tuple[str, Any]]] = {}
    for name, module in replay.module.named_modules():
        path = join(own, name)
        if not any(path == each or below(path, each) for each in inner):
            modules.setdefault(type(module), []).append((name, module))
    for kind, those in modules.items():
        if not issubclass(kind, LISTS):
            yield from siblings(those)
    for kind, those in modules.items():
        for name, module in those if issubclass(kind, LISTS) else ():
            yield from turned(name, module)


def siblings(those: Named) -> Iterator[Proposal]:
    """Mutations that exchange two children of one kind and shape, or two tensors of one shape, in every one of the modules."""
    first = those[0][1]
    children = [(key, each) for key, each in first.named_children() if shapes(each)][:MOST_CHILDREN]
    tensors = [(key, each) for key, each in first._parameters.items() if each is not None and each.ndim][:MOST_TENSORS]
    for (one, a), (other, b) in combinations(children, 2):
        if type(a) is type(b) and shapes(a) == shapes(b):
            yield exchanged(CHILDREN, children_exchanged, those, one, other)
    for (one, a), (other, b) in combinations(tensors, 2):
        if a.shape == b.shape and not torch.equal(a, b):
            yield exchanged(TENSORS, tensors_exchanged, those, one, other)


def exchanged(change: Change, edit: Callable[..., Edit], those: Named, one: str, other: str) -> Proposal:
    """Propose to exchange two children or tensors, given by their names, in each of the modules."""
    name, first = those[0]
    args: dict[str, Any] = {"how": "everywhere", "kind": type(first).__name__} if len(those) > 1 else {"how": "here"}
    name = "" if len(those) > 1 else name
    edits = partial(in_each, edit, [module for _, module in those], one, other)
    return propose(change, (join(name, one), join(name, other)), edits, **args)


def shapes(module: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of a module's parameters."""
    return tuple(tuple(each.shape) for each in module.parameters())


def in_each(edit: Callable[..., Edit], modules: Sequence[Any], one: str, other: str) -> Edit:
    """Edit that exchanges two children or tensors in each of the modules."""
    return together(*(edit(module, one, other) for module in modules))


def children_exchanged(module: Any, one: str, other: str) -> Edit:
    """Edit that exchanges two children of a module."""
    children = module._modules
    return replaced(module, "_modules", children | {one: children[other], other: children[one]})


@contextmanager
def tensors_exchanged(module: Any, one: str, other: str) -> Iterator[None]:
    """Context manager that exchanges the values of two parameters of a module."""
    a, b = module._parameters[one], module._parameters[other]
    with together(held(a, b.clone()), held(b, a.clone())):
        yield


def turned(name: str, module: Any) -> Iterator[Proposal]:
    """Mutations that rotate a list: it begins with its second entry, or with its last."""
    kind = "_parameters" if isinstance(module, torch.nn.ParameterList) else "_modules"
    those = getattr(module, kind)
    values = [*those.values()]
    for how, first in (("second", 1), ("last", -1)) if len(those) > 2 else ():
        changed = dict(zip(those, values[first:] + values[:first], strict=True))
        yield propose(TURNED, name, partial(replaced, module, kind, changed), how=how)


def twins(replay: Replay) -> Iterator[Proposal]:
    """Mutations of modules of one kind and size beside each other: one is called in place of another, or two are exchanged."""
    found: dict[Any, list[tuple[str, Any]]] = {}
    for name, each in replay.module.named_modules():
        if name and shapes(each) and not name.rpartition(".")[2].isdigit():
            found.setdefault((parent(name), type(each), shapes(each)), []).append((name, each))
    for those in (those for those in found.values() if 1 < len(those) <= MOST_TWINS):
        for (name, module), (other, its) in permutations(those, 2):
            yield propose(TWIN, (name, other), partial(replaced, module, "forward", its.forward))
        for (name, module), (other, its) in combinations(those, 2):
            yield propose(TWINS, (name, other), partial(calls_exchanged, module, its))


@contextmanager
def calls_exchanged(module: Any, other: Any) -> Iterator[None]:
    """Context manager that exchanges the `forward` of two modules. Inputs and outputs are recorded for the module whose
    `forward` runs."""
    with together(replaced(module, "forward", other.forward), replaced(other, "forward", module.forward)):
        yield
