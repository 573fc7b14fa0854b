"""Edits of a replay's modules and tensors; the modules' paths, names and outputs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from jaxformer.parity.diagnose.calls import Arguments
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.trace.call_sites import CALL, Site, below, join


@contextmanager
def replaced(owner: Any, attribute: str, other: Any) -> Iterator[None]:
    """Edit: an attribute of `owner` has another value."""
    missing = object()
    before = vars(owner).get(attribute, missing)
    object.__setattr__(owner, attribute, other)
    try:
        yield
    finally:
        if before is missing:
            object.__delattr__(owner, attribute)
        else:
            object.__setattr__(owner, attribute, before)


@contextmanager
def intercepted(modules: Mapping[str, Any], through: Callable[..., Any]) -> Iterator[None]:
    """Edit: calls of modules become `through(name, forward, *args, **kwargs)`."""
    with ExitStack() as stack:
        for name, module in modules.items():
            other = wraps(module.forward)(partial(through, name, module.forward))
            stack.enter_context(mock.patch.object(module, "forward", other))
        yield


def recorded(modules: Mapping[str, Any], calls: dict[str, list[Arguments]]) -> AbstractContextManager[None]:
    """Edit: the arguments of each call of modules are added to `calls`, in which names come in the order of the first calls."""

    def noted(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.setdefault(name, []).append((args, kwargs))
        return forward(*args, **kwargs)

    return intercepted(modules, noted)


@contextmanager
def held(tensor: torch.Tensor, other: torch.Tensor | Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Edit: a tensor has the numbers of another one, or of a function of it, through which gradients go."""
    instead = other if isinstance(other, torch.Tensor) else other(tensor)
    if torch.is_grad_enabled() and tensor.is_floating_point():
        with Instead(tensor, instead):
            yield
        return
    before = tensor.clone()
    tensor.copy_(instead.clone())  # it may be a view of `tensor`'s own memory
    try:
        yield
    finally:
        tensor.copy_(before)


class Instead(TorchFunctionMode):
    """Context manager: functions are given another tensor in place of one."""

    def __init__(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        super().__init__()
        self.tensor, self.other = tensor, other

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: self.other if x is self.tensor else x, (args, kwargs or {}))
        return func(*args, **kwargs)


MOST_MODULES = 12
"""Number of kinds of norms (paths without indices) that are mutated at most."""
LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def path_of(replay: Replay) -> str:
    """Return the path of the replayed module; '' for the whole model."""
    return "" if replay.owner == CALL else replay.owner.path


def full_path(replay: Replay, name: str) -> str:
    """Return the path in the model of a module inside the replayed one."""
    return join(path_of(replay), name)


def name_of(replay: Replay, site: Site) -> str:
    """Return the name of a child's call, relative to the replayed module."""
    return str(site).removeprefix(f"{replay.owner.path}.")


def given_by(replay: Replay) -> dict[Site, torch.Tensor]:
    """Return the children's outputs that are a single float tensor."""
    return {site: it for site, it in replay.given.items() if isinstance(it, torch.Tensor) and it.is_floating_point()}


def its_input(x: Any, *others: Any, **named: Any) -> Any:
    """Return the first argument."""
    return x


def keeps_a_shape(module: Any) -> bool:
    """True for a module whose parameters are all vectors, such as a norm."""
    own = [*module.parameters()]
    return bool(own) and all(each.squeeze().ndim < 2 for each in own) and not isinstance(module, LISTS)


def norms(replay: Replay) -> dict[str, Any]:
    """Return the norms, and other modules whose parameters are vectors, by name.

    Modules inside another one found are left out, and so are those inside a boundary, whose output stays as it is.
    """
    made, own = replay.place.site.path, path_of(replay)
    around = [each.path for each in replay.boundaries if below(each.path, own)]
    closed = [path for path in around if path != made and not below(made, path)]
    found: dict[str, Any] = {}
    for name, each in replay.module.named_modules():
        inner = any(below(name, other) for other in found) or any(below(full_path(replay, name), path) for path in closed)
        if name and not inner and keeps_a_shape(each):
            found[name] = each
    kinds = [*dict.fromkeys(map(starred, found))][:MOST_MODULES]
    return {name: each for name, each in found.items() if starred(name) in kinds}


def starred(name: str) -> str:
    """Replace the indices in a path: 'layers.*.norm'."""
    return re.sub(r"\b\d+\b", "*", name)


def in_layers(labels: Sequence[str], chosen: set[str]) -> tuple[str, ...]:
    """Return the chosen labels; those of all layers as one."""
    whole = {*map(starred, labels)} - {starred(each) for each in labels if each not in chosen}
    return tuple(dict.fromkeys(starred(each) if starred(each) in whole else each for each in labels if each in chosen))
