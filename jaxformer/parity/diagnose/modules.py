"""Modules of a replay, their paths and names, what they gave, and edits of modules and tensors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.trace.call_sites import CALL, Site, below, join


@contextmanager
def replaced(owner: Any, attribute: str, other: Any) -> Iterator[None]:
    """Edit, an attribute is another."""
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
def held(tensor: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
    """Edit, a tensor has the numbers of another one."""
    before = tensor.clone()
    tensor.copy_(other.clone())  # it may be another view of the same numbers
    try:
        yield
    finally:
        tensor.copy_(before)


MOST_MODULES = 12
"""Kinds of norms that are looked at."""
LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def path_of(replay: Replay) -> str:
    """Path of the module that is replayed; '' is the model."""
    return "" if replay.owner == CALL else replay.owner.path


def full_path(replay: Replay, name: str) -> str:
    """Path in the model of a module inside the replayed one."""
    return join(path_of(replay), name)


def name_of(replay: Replay, site: Site) -> str:
    """Name of a child's call inside the replayed one."""
    return str(site).removeprefix(f"{replay.owner.path}.")


def given_by(replay: Replay) -> dict[Site, torch.Tensor]:
    """Outputs of children, where one is a single array of real numbers."""
    return {site: it for site, it in replay.given.items() if isinstance(it, torch.Tensor) and it.is_floating_point()}


def its_input(x: Any, *others: Any, **named: Any) -> Any:
    """Return the first argument."""
    return x


def keeps_a_shape(module: Any) -> bool:
    """True for a norm, or another module whose parameters are vectors."""
    own = [*module.parameters()]
    return bool(own) and all(each.squeeze().ndim < 2 for each in own) and not isinstance(module, LISTS)


def norms(replay: Replay) -> dict[str, Any]:
    """Modules that keep a shape, by their names: of every layer, but none inside another one, as one for each head, and none
    inside a call whose output stays."""
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
    """'layers.*.norm'"""
    return re.sub(r"\b\d+\b", "*", name)
