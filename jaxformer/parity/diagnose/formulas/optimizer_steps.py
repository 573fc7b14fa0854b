"""Find the cause of an optimizer step that differs although the gradients are equal, by formulas with choices."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import factor_between, round_number
from jaxformer.parity.diagnose.formulas.choices import ALL, Choices, differing_choices, fitting, search_both
from jaxformer.parity.diagnose.formulas.optimizer_course import CLIPS, OF_BATCHES, Course, Settings
from jaxformer.parity.diagnose.formulas.words import said
from jaxformer.parity.diagnose.numbers_and_orders import say

FAR, NEAR = 0, 2
"""Number of choices in which torch may differ from its settings, and jax from torch."""
SOME = 4096
"""Number of entries that nearly always rule out a wrong combination."""
MULTIPLE = 1e-6
"""The largest relL2 at which an array counts as a multiple of another one."""
CLIPPED = 1e-4
"""Tolerance of the norm of clipped moves: entries whose gradient is rounding are not compared."""
MOST_NAMED = 3


def explain_step(settings: Settings, course: Course, moves: tuple[np.ndarray, np.ndarray]) -> str:
    """Explain a step: 'torch adds epsilon after the root: sqrt(x) + eps; jax ...', or '' if no formula gives both sides.

    `moves` are torch's and jax's updates at the last step, divided by the learning rates. If several changes of one choice give
    jax's, all are told: a first step does not tell Nesterov's momentum left out from no momentum.
    """
    few = slice(None, None, max(1, len(course.rates) // SOME))
    grounds = [(step_choices(settings, course.at(entries)), entries) for entries in (few, ALL)]
    if not (found := search_both(step, grounds, moves, (FAR, NEAR))):
        return clipped_behind(settings, course, moves[1])
    if not (differing := differing_choices(choices := grounds[-1][0], *found)):
        return ""
    torchs, residual = found[0][0], max(found[0][1], found[1][1])
    every = fitting(step, grounds, torchs, moves[1], 1) if len(differing) == 1 else ()
    several = [differing_choices(choices, found[0], each) for each in every] or [differing]
    told = (f"torch {said(each, 0)}; jax {said(each, 1)}" for each in several)
    return f"{', or the same in this step: '.join(told)} (residual {residual:.0e})"


def clipped_behind(settings: Settings, course: Course, moves: np.ndarray) -> str:
    """Describe jax's moves where they are clipped in place of the gradients: before weight decay, after it, or after the
    learning rate too; '' where they are not."""
    if settings.clip_norm is None:
        return ""
    choices = step_choices(replace(settings, clip_norm=None), course)
    own: dict[str, Any] = {what: next(iter(options.values())) for what, options in choices.items()}
    bare: dict[str, Any] = {**own, "weight decay": "left out"}
    whole, alone = step(**own), step(**bare)
    limit, kind = settings.clip_norm, settings.kind
    places = {
        f"what {kind} gives": (alone, alone),
        f"what {kind} gives, with the decay": (whole, whole),
        f"the moves, times the learning rate and decayed, behind {kind}": (whole, course.rates * whole),
    }
    for what, (clipped, array) in places.items():
        factor, residual = factor_between(moves - (whole - clipped), clipped)
        if residual <= MULTIPLE and abs(factor * float(np.linalg.norm(array)) / limit - 1) <= CLIPPED:
            return f"torch clips gradients to a norm of {limit:g}; jax clips {what}, to that norm (residual {residual:.0e})"
    return ""


def step_choices(settings: Settings, course: Course) -> Choices:
    """List the choices, torch's own settings first."""
    found: Choices = {"settings": {"": settings}, "course": {"": course}}
    found |= {"Adam": adam, "RMSprop": rms_prop, "SGD": descent}[settings.kind](settings)
    parts = settings.accumulate
    if settings.kind != "SGD" or settings.clip_norm is not None or course.decays.any():
        found["gradients times"] = {f"{n:g}": n for n in (1.0, 2.0, 0.5, float(parts), 1 / parts)}
    found["zero gradients"] = {str(n): n for n in (0, 1, 2, 3, parts - 1, parts)}
    decays = course.decays
    if decays.any():
        ways = ["decoupled", "coupled"] if settings.decoupled else ["coupled", "decoupled"]
        found["weight decay"] = {way: way for way in [*ways, "left out"]}
        all_of = decays.max()
        found["weights decayed"] = {"some": decays, "all": all_of} if np.ptp(decays) else {"all": decays}
        if not np.array_equal(decays, all_of * course.matrices):
            found["weights decayed"]["matrices alone"] = all_of * course.matrices
    if settings.clip_norm is not None:
        found["gradients clipped by"] = {how: clip for how, clip in CLIPS.items() if how != OF_BATCHES or parts > 1}
    return found


def adam(settings: Settings) -> Choices:
    """List the choices of Adam (Kingma and Ba 2015, algorithm 1), with Nadam's momentum (Dozat 2016, algorithm 8, with one
    momentum)."""
    usual = itertools.product((0.9, 0.95, 0.85, 0.8, 0.5, 0.0), (0.999, 0.99, 0.98, 0.97, 0.95, 0.9, 0.9999))
    return roots(settings) | {
        "betas": {f"{one:g} and {two:g}": (one, two) for one, two in (settings.betas, *usual)},
        "momentum": {"Adam's": False, "Nesterov's": True},
        "bias correction": {"on": True, "off": False},
    }


def rms_prop(settings: Settings) -> Choices:
    """List the choices of RMSprop (Hinton 2012, lecture 6e)."""
    return roots(settings) | {
        "decay of squares": {f"{beta:g}": (0.0, beta) for beta in (settings.betas[1], 0.99, 0.9, 0.95, 0.999)},
        "bias correction": {"off": False, "on": True},
        "squares begin at": {"0": 0.0, "1": 1.0},
        "squares": own_first({"plain": False, "centered": True}, settings.centered),
        **descent(settings),
    }


def descent(settings: Settings) -> Choices:
    """List the choices of momentum."""
    return {
        "share of the last move": {f"{beta:g}": beta for beta in (settings.share, 0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.99)},
        "momentum": own_first({"heavy-ball": False, "Nesterov's": True}, settings.nesterov),
        "moves": {"summed": False, "averaged": True},
    }


def own_first(options: dict[str, bool], own: bool) -> dict[str, bool]:
    """Order the options of a switch: torch's own first."""
    return dict(sorted(options.items(), key=lambda each: each[1] != own))


def roots(settings: Settings) -> Choices:
    """List the choices of the epsilon at the root of the mean of squares: its size and its place."""
    return {
        "epsilon": {f"{e:g}": e for e in (settings.epsilon, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1e-9, 1e-10, 1e-12, 0.0)},
        "epsilon's place": {"outside the root": (0, 1), "in the root": (1, 0), "in and outside": (1, 1)},
    }


def step(settings: Settings, course: Course, **chosen: Any) -> np.ndarray:
    """Compute the update of the last step, divided by the learning rates; it includes steps with zero gradients before it."""
    way, zeros, times = chosen.get("weight decay"), chosen["zero gradients"], chosen.get("gradients times", 1.0)
    decayed, clip, given = chosen.get("weights decayed", 0.0), chosen.get("gradients clipped by"), []
    for gradient, weights in zip(course.gradients, course.weights, strict=True):
        gradient = gradient.times(times)
        own = gradient.whole if clip is None or settings.clip_norm is None else clip(gradient, settings.clip_norm)
        added = weights * decayed if way == "coupled" else np.zeros_like(own)
        given += [added] * zeros + [own + added]
    apart = decayed if way == "decoupled" else 0.0
    weights = before = course.weights[-1]
    for end in range(len(given) - zeros, len(given) + 1):
        weights = weights - course.rates * (direction(given[:end], settings, chosen) + apart * weights)
    return (weights - before) / course.rates


def direction(given: Sequence[np.ndarray], settings: Settings, chosen: Mapping[str, Any]) -> np.ndarray:
    """Compute the direction of the last step: weights move by minus the direction times the learning rate."""
    if settings.kind == "Adam":
        return scaled(given, chosen)
    moves = given if settings.kind == "SGD" else [scaled(given[:end], chosen) for end in range(1, len(given) + 1)]
    beta = chosen["share of the last move"]
    down = summed(moves, beta) * (1 - beta if chosen["moves"] else 1.0)
    return moves[-1] + beta * down if chosen["momentum"] else down


def scaled(given: Sequence[np.ndarray], chosen: Mapping[str, Any]) -> np.ndarray:
    """Divide the mean of the gradients by the root of the mean of their squares."""
    last, steps = given[-1], len(given)
    beta, other = chosen.get("betas") or chosen["decay of squares"]
    mean, square = ((1 - b) * summed([g**n for g in given], b) for n, b in ((1, beta), (2, other)))
    square = square + chosen.get("squares begin at", 0.0) * other**steps
    if chosen.get("squares"):
        square = square - ((1 - other) * summed(given, other)) ** 2
    corrected = chosen["bias correction"]
    if corrected:
        square = square / (1 - other**steps)
    if chosen.get("momentum") and "betas" in chosen:
        further = (1 - beta ** (steps + 1), 1 - beta**steps) if corrected else (1.0, 1.0)
        mean = beta * mean / further[0] + (1 - beta) * last / further[1]
    elif corrected:
        mean = mean / (1 - beta**steps)
    inside, outside = (chosen["epsilon"] * share for share in chosen["epsilon's place"])
    return mean / (np.sqrt(square + inside) + outside)


def summed(arrays: Sequence[np.ndarray], beta: float) -> np.ndarray:
    """Sum arrays with decaying weights: each counts beta times as much as the next one, the last one 1."""
    weights = float(beta) ** np.arange(len(arrays))[::-1]
    return np.tensordot(weights, np.stack(arrays), 1)


def explain_moves(
    moves: tuple[np.ndarray, np.ndarray], course: Course, kept: Mapping[str, np.ndarray]
) -> tuple[str, float | None]:
    """Describe another weight decay of jax's, or updates that are multiples of torch's, of all or some tensors.

    Returns the words ('' if neither holds), and jax's learning rate if it is another one. `moves` are torch's and jax's
    updates, divided by the learning rates, of the entries that are True in `kept`.
    """
    torch_moves, jax_moves = moves
    if wrong := int((~np.isfinite(jax_moves)).sum()):
        return f"jax moves {wrong} of {jax_moves.size} entries by NaN or infinity", None
    decay, residual = factor_between(jax_moves - torch_moves, course.weights[-1])
    if residual <= MULTIPLE:
        return f"jax decays weights by {abs(decay):.6g} {'less' if decay > 0 else 'more'}", None
    further, residual = factor_between(jax_moves - torch_moves, torch_moves)
    if residual <= MULTIPLE:
        rate = float(course.rates[0]) * (1 + further)
        return f"jax moves {say(1 + further)} times as far", rate if not np.ptp(course.rates) else None
    ends = np.cumsum([own.sum() for own in kept.values()])[:-1]
    tensors = [*zip(kept, *(np.split(each, ends) for each in (torch_moves, jax_moves, course.weights[-1])), strict=True)]
    differing = [each for each in tensors if not np.allclose(each[2], each[1], MULTIPLE, 0)]
    decays = {name: factor_between(j - t, w) for name, t, j, w in differing}
    if decays and all(residual <= MULTIPLE for _, residual in decays.values()):
        other = [f"{name} by {abs(by):.6g} {'less' if by > 0 else 'more'}" for name, (by, _) in decays.items()]
        return f"jax decays {named_in(other)}, and the other tensors as torch does", None
    factors = {name: factor_between(j, t) for name, t, j, _ in tensors if t.size}
    if any(residual > MULTIPLE for _, residual in factors.values()):
        return "", None
    if not any(abs(factor - 1) > MULTIPLE for factor, _ in factors.values()):
        return "", None
    other = [f"{name} {say(round_number(factor))}" for name, (factor, _) in factors.items() if abs(factor - 1) > MULTIPLE]
    return f"jax moves tensors by other multiples of torch's moves: {named_in(other)}", None


def named_in(names: Sequence[str]) -> str:
    """List the first of several names."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def explain_schedule(torch: np.ndarray, jax: np.ndarray) -> str:
    """Describe how jax's learning rates of all steps follow from torch's: later, earlier, faster, slower, or multiplied; '' if
    none of these holds."""
    steps = len(torch)
    found = [(f"jax is {n} step{'s' * (n > 1)} late", torch[:-n], jax[n:]) for n in range(1, steps)]
    found += [(f"jax is {n} step{'s' * (n > 1)} early", torch[n:], jax[:-n]) for n in range(1, steps)]
    found += [(f"jax's schedule runs {n} times as fast", torch[::n], jax[: -(-steps // n)]) for n in range(2, steps)]
    found += [(f"jax's schedule runs {n} times as slowly", torch[: -(-steps // n)], jax[::n]) for n in range(2, steps)]
    factor, residual = factor_between(jax, torch)
    if residual <= MULTIPLE:
        return f"jax's rates are {factor:.9g} times torch's"
    return next((says for says, one, other in found if np.unique(one).size > 2 and np.allclose(one, other, 1e-9, 0)), "")
