"""What may be otherwise in which of several alike modules or tensors is which: two exchanged, everywhere or in one place."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any

import torch

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.explain.alterations.altered import Alteration, together
from jaxformer.parity.explain.alterations.of_children import path_of
from jaxformer.parity.explain.alterations.of_modules import held, replaced
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_CHILDREN = 6
MOST_TENSORS = 8
LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Children of every module of one kind; tensors of one module; lists whose first is another one."""
    own, inner = path_of(rerun), {site.path for site in rerun.given}
    modules: dict[type, list[tuple[str, Any]]] = {}
    for name, module in rerun.module.named_modules():
        path = ".".join(filter(None, (own, name)))
        if not any(path == each or path.startswith(f"{each}.") for each in inner if each not in (own, CALL.path)):
            modules.setdefault(type(module), []).append((name, module))
    for kind, those in modules.items():
        if not issubclass(kind, LISTS):
            yield from children(those)
            yield from tensors(those)
    for name, module in (each for kind, those in modules.items() if issubclass(kind, LISTS) for each in those):
        yield from turned(name, module)


def children(those: list[tuple[str, Any]]) -> Iterator[Alteration]:
    """Two of one kind and shape are exchanged, in every one of the modules."""
    name, first = those[0]
    known = [(key, each) for key, each in first.named_children() if [*each.parameters()]][:MOST_CHILDREN]
    for (one, a), (other, b) in combinations(known, 2):
        if type(a) is type(b) and shapes(a) == shapes(b):
            where = f" in every {type(first).__name__}" if len(those) > 1 else ""
            path = f"{name}." if name and not where else ""
            says = f"{path}{one} and {path}{other} as they are{where}", "the two exchanged"
            yield Alteration(*says, partial(all_exchanged, [each for _, each in those], one, other))


def shapes(module: Any) -> list[Any]:
    """Of its parameters."""
    return [tuple(each.shape) for each in module.parameters()]


def all_exchanged(modules: list[Any], one: str, other: str) -> Any:
    """Inside, two children of each of the modules are exchanged."""
    changed = ((each, each._modules | {one: each._modules[other], other: each._modules[one]}) for each in modules)
    return together(*(replaced(module, "_modules", children) for module, children in changed))


def tensors(those: list[tuple[str, Any]]) -> Iterator[Alteration]:
    """Two parameters of one shape are exchanged, in every one of the modules."""
    name, first = those[0]
    known = [(key, each) for key, each in first._parameters.items() if each is not None and each.ndim][:MOST_TENSORS]
    for (one, a), (other, b) in combinations(known, 2):
        if a.shape == b.shape and not torch.equal(a, b):
            where = f" in every {type(first).__name__}" if len(those) > 1 else ""
            path = f"{name}." if name and not where else ""
            pairs = [(each._parameters[one], each._parameters[other]) for _, each in those]
            says = f"{path}{one} and {path}{other} as they are{where}", "the two exchanged"
            yield Alteration(*says, lambda pairs=pairs: together(*(swapped(*each) for each in pairs)))


@contextmanager
def swapped(one: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
    """Inside, two tensors have each other's numbers."""
    numbers = one.clone()
    with held(one, other.clone()), held(other, numbers):
        yield


def turned(name: str, module: Any) -> Iterator[Alteration]:
    """A list that begins with its second, or its last."""
    kind = "_parameters" if isinstance(module, torch.nn.ParameterList) else "_modules"
    those = getattr(module, kind)
    if len(those) > 2:
        values = [*those.values()]
        for says, other in (("the second first", values[1:] + values[:1]), ("the last first", values[-1:] + values[:-1])):
            changed = dict(zip(those, other, strict=True))
            yield Alteration(f"{name} in their order", f"{name} {says}", partial(replaced, module, kind, changed))
