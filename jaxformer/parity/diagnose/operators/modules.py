"""Modules of a replay: their paths and names, what they gave, and which of them are norms."""

from typing import Any

import torch

from jaxformer.parity.capture.call_sites import CALL, Site
from jaxformer.parity.capture.module_paths import below, join
from jaxformer.parity.diagnose.operators.parameters import starred
from jaxformer.parity.diagnose.replay import Replay

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
    around = [each.path for each in replay.borders if below(each.path, own)]
    closed = [path for path in around if path != made and not below(made, path)]
    found: dict[str, Any] = {}
    for name, each in replay.module.named_modules():
        inner = any(below(name, other) for other in found) or any(below(full_path(replay, name), path) for path in closed)
        if name and not inner and keeps_a_shape(each):
            found[name] = each
    kinds = [*dict.fromkeys(map(starred, found))][:MOST_MODULES]
    return {name: each for name, each in found.items() if starred(name) in kinds}
