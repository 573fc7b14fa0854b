"""Why a first step of an optimizer differs although the gradients are equal: formulas with choices, tried on both sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.by_arrays.formulas.choices import ALL, Choices, differing_choices, search_both
from jaxformer.parity.diagnose.by_arrays.formulas.words import said
from jaxformer.parity.diagnose.by_arrays.values import factor_between

FAR, NEAR = 0, 2
"""In how many choices torch may differ from its settings, and jax from torch."""

MULTIPLE = 1e-6
"""The largest relL2 at which an array counts as a multiple of another one."""


@dataclass(frozen=True)
class Settings:
    """What torch's optimizer was told, for all of its parameters."""

    epsilon: float | None
    """Adam's; None for plain gradient descent."""
    betas: tuple[float, float]
    """Adam's."""
    decays: Mapping[str, float]
    """Weight decay by the names of its parameters."""
    decoupled: bool
    clip_norm: float | None


def settings_of(optimizer: Any, names: Mapping[Any, str], clip_norm: float | None) -> Settings | None:
    """Those of torch.optim's Adam, AdamW and SGD; None for other optimizers, and for groups of several kinds."""
    import torch

    groups = optimizer.param_groups
    kinds = {(g.get("eps"), g.get("betas", (0.0, 0.0)), bool(g.get("decoupled_weight_decay"))) for g in groups}
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.SGD)) or len(kinds) > 1:
        return None
    ((epsilon, betas, decoupled),) = kinds
    decays = {names[parameter]: float(group["weight_decay"]) for group in groups for parameter in group["params"]}
    return Settings(epsilon, betas, decays, decoupled, clip_norm)


def explain_step(
    settings: Settings,
    gradients: Sequence[Mapping[str, np.ndarray]],
    before: Mapping[str, np.ndarray],
    moves: tuple[np.ndarray, np.ndarray],
    kept: Mapping[str, np.ndarray],
) -> str:
    """'torch adds epsilon behind the root: sqrt(x) + eps; jax ...', or '' where no formula gives both.

    `gradients` are those so far, of which only the last one moved anything. `moves` are torch's and jax's, in learning rates,
    of the entries of each parameter that are True in `kept`, in its order.
    """
    norms = [float(np.sqrt(sum(np.square(array).sum() for array in each.values()))) for each in gradients]
    past, weights = [flat(each, kept) for each in gradients], flat(before, kept)
    matrices = flat({name: float(own.ndim > 1) for name, own in kept.items()}, kept)
    choices = step_choices(settings, norms, flat(settings.decays, kept), matrices)
    found = search_both(partial(step, past, settings.betas, weights), [(choices, ALL)], moves, (FAR, NEAR))
    if not found or not (differing := differing_choices(choices, *found)):
        return ""
    torch, jax = (said(differing, side) for side in (0, 1))
    return f"torch {torch}; jax {jax} (residual {max(found[0][1], found[1][1]):.0e})"


def flat(arrays: Mapping[str, Any], kept: Mapping[str, np.ndarray]) -> np.ndarray:
    """The kept entries of all arrays as one vector; a number counts for each entry."""
    return np.concatenate([np.broadcast_to(arrays[name], own.shape)[own] for name, own in kept.items()])


def step_choices(settings: Settings, norms: Sequence[float], decays: np.ndarray, matrices: np.ndarray) -> Choices:
    """torch's own settings first; `norms` are those of the gradients, `decays` what each weight decays by. `matrices` is 1 for
    weights of more than one axis, and 0 for others."""
    found: Choices = {}
    if settings.epsilon is not None:
        found["epsilon"] = {f"{e:g}": e for e in (settings.epsilon, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1e-9, 1e-10, 1e-12, 0.0)}
        found["epsilon's place"] = {"outside the root": False, "in the root": True}
        found["momentum"] = {"Adam's": False, "Nesterov's": True}
    if any(settings.decays.values()):
        ways = ["decoupled", "coupled"] if settings.decoupled else ["coupled", "decoupled"]
        found["weight decay"] = {way: way for way in [*ways, "left out"]}
        all_of = decays.max()
        found["weights decayed"] = {"some": decays, "all": all_of} if np.ptp(decays) else {"all": decays}
        if not np.array_equal(decays, all_of * matrices):
            found["weights decayed"]["matrices alone"] = all_of * matrices
    if settings.clip_norm is not None:
        found["gradients clipped by"] = {
            name: [min(1.0, settings.clip_norm / (norm + more)) for norm in norms]
            for name, more in (("norm + 1e-6", 1e-6), ("norm", 0.0))
        } | {"nothing": [1.0] * len(norms)}
    return found


def step(gradients: Sequence[np.ndarray], betas: tuple[float, float], weights: np.ndarray, **chosen: Any) -> np.ndarray:
    """The move, in learning rates: Adam's (Kingma and Ba 2015, algorithm 1), Nadam's (Dozat 2016, algorithm 8, with one
    momentum), or that of plain descent."""
    way, factors = chosen.get("weight decay"), chosen.get("gradients clipped by", [1.0] * len(gradients))
    decay = weights * chosen.get("weights decayed", 0.0)
    clipped = [g * factor + (decay if way == "coupled" else 0.0) for g, factor in zip(gradients, factors, strict=True)]
    down = clipped[-1]
    if "epsilon" in chosen:
        mean, square = (averaged([g**power for g in clipped], beta) for power, beta in zip((1, 2), betas, strict=True))
        if chosen["momentum"]:
            beta, steps = betas[0], len(clipped)
            mean = (beta * (1 - beta**steps) * mean / (1 - beta ** (steps + 1))) + (1 - beta) * down / (1 - beta**steps)
        epsilon = chosen["epsilon"]
        down = mean / (np.sqrt(square + epsilon) if chosen["epsilon's place"] else np.sqrt(square) + epsilon)
    return -down - (decay if way == "decoupled" else 0.0)


def averaged(arrays: Sequence[np.ndarray], beta: float) -> np.ndarray:
    """The weighted mean, in which each array counts beta times as much as the next one."""
    weights = beta ** np.arange(len(arrays))[::-1]
    return np.tensordot(weights / weights.sum(), np.stack(arrays), 1)


def explain_moves(moves: tuple[np.ndarray, np.ndarray], weights: np.ndarray) -> str:
    """Where jax decays weights otherwise, or moves by a multiple; `moves` are torch's and jax's, in learning rates."""
    torch_moves, jax_moves = moves
    decay, residual = factor_between(jax_moves - torch_moves, weights)
    if residual <= MULTIPLE:
        return f"jax decays weights by {abs(decay):.6g} {'less' if decay > 0 else 'more'}"
    further, residual = factor_between(jax_moves - torch_moves, torch_moves)
    return f"jax moves {1 + further:.9g} times as far" if residual <= MULTIPLE else ""
