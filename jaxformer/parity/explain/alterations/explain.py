"""The search: torch's code with one thing altered, the plain ones first, until it gives jax's array."""

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from jaxformer.parity.explain.alterations import of_layers
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Found
from jaxformer.parity.explain.alterations.elsewhere import elsewhere
from jaxformer.parity.explain.alterations.fits import Fit, also, is_new, said
from jaxformer.parity.explain.alterations.losses import is_certain
from jaxformer.parity.explain.alterations.numbers import off, solved
from jaxformer.parity.explain.alterations.operations import LITTLE, Altered
from jaxformer.parity.explain.alterations.order import every, kinds, until_refused
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.constants import say
from jaxformer.parity.explain.effort import Effort
from jaxformer.parity.numerics.metrics import EXPLAINED

FLOAT32, LARGE = 3e-7, 1e4
"""A residual of float32's rounding, as tables have that jax's code computes; and how many times larger the difference is."""
CLEAR = 100
"""How many times smaller than the difference a residual is, at least."""
ORDINARY = 30
"""So many times torch's number one may be that stands where torch's code reads None."""
PLAINEST = ("left out", "leaves it out", "operand alone")
"""How alterations end that only leave something out."""


def explain_altered(rerun: Rerun, torch: np.ndarray, jax: np.ndarray, hints: dict[Any, Any], effort: Effort) -> str:
    """'torch eps 1e-05; jax eps 1e-06 (residual 2e-16)', or '' where no alteration gives jax's array. `hints` has what
    explained other modules, and how many alterations were tried. It gives up where the effort is spent."""
    if says := explain_as_before(rerun, torch, jax, hints, effort):
        return says
    if not np.isfinite(jax).any() or not rerun.begins:
        return ""
    return noted(first_found(rerun, torch, jax, near_enough(torch, jax), hints, effort), hints)


def explain_as_before(rerun: Rerun, torch: np.ndarray, jax: np.ndarray, hints: dict[Any, Any], effort: Effort) -> str:
    """What is said of an alteration that explained another module, if it explains this one."""
    known = hints.setdefault("alterations", {})
    if not known or not np.isfinite(jax).any() or not rerun.begins:
        return ""
    return noted(first_known(rerun, known, jax, near_enough(torch, jax), effort), hints)


def noted(best: list[Fit], hints: dict[Any, Any]) -> str:
    """What is said; what was found is a hint from now on."""
    if not best:
        return ""
    first = best[0]
    hints["found"], hints["gives"] = first.found, first.gives
    hints["alterations"][first.found[1:3]] = first.found.number
    return said(best)


def first_found(
    rerun: Rerun, torch: np.ndarray, jax: np.ndarray, limit: float, hints: dict[Any, Any], effort: Effort
) -> list[Fit]:
    """Those of the first kind of which one fits: what gives most of jax's arrays, the plainest first."""
    found: list[Fit] = []
    vague: list[Fit] = []
    rounded: list[Fit] = []
    for kind, most in kinds(rerun, effort.left / rerun.cost):
        for alteration in until_refused(kind):
            if effort.is_spent or len(found) >= most:
                break
            hints["tried"] = hints.get("tried", 0) + 1
            fits = tried(rerun, alteration, torch, jax, limit, effort)
            if not fits or not is_certain(rerun, numbered(alteration, fits[2]), solved=isinstance(alteration, Dial)):
                continue
            others = elsewhere(rerun, numbered(alteration, fits[2]), limit)
            if others.contradicts:
                hints.setdefault("as if", fits[0])
            elif is_new(fits[0], found):
                fit = Fit(*fits[:2], Found(rerun.owner, *alteration[:2], fits[2]), others.gives)
                if (known := as_a_fact(rerun, alteration, fit, jax, limit, effort)) != fit.says:
                    vague.append(fit._replace(says=known))
                else:
                    (found if fit.residual <= EXPLAINED else rounded).append(fit)
        if found or vague or rounded or effort.is_spent:
            break
    best = sorted(found, key=lambda each: (-len(each.gives), *supposed(each.says, each.found.number)))
    best = [each._replace(says=also(each.says, each.found)) for each in best[:1] if vague] or best or vague[:1] or rounded[:1]
    return [each for each in best if each.gives == best[0].gives]


def as_a_fact(rerun: Rerun, alteration: Alteration | Dial, fit: Fit, jax: np.ndarray, limit: float, effort: Effort) -> str:
    """What is said, 'as if' where a number that was tried is not the only one that fits, as of a window beyond the text, or of
    what is rounded to whole numbers."""
    altered = numbered(alteration, fit.found.number)
    others = itertools.chain(beside(rerun, alteration), nudged(altered))
    return also(fit.says, altered) if any(off(array(rerun, each, effort), jax) <= limit for each in others) else fit.says


def nudged(alteration: Alteration) -> Iterator[Alteration]:
    """The same with a little more or less of what it computes: where that gives as much, it is rounded to whole numbers, or
    something is chosen by it."""
    if isinstance(inside := alteration.inside(), Altered):
        for part in (LITTLE, -LITTLE):
            yield Alteration(*alteration[:2], partial(inside.nudged, part))


def beside(rerun: Rerun, alteration: Alteration | Dial) -> Iterator[Alteration]:
    """The same with other whole numbers."""
    if not isinstance(alteration, Alteration):
        return
    for inside in alteration.near:
        yield alteration._replace(inside=inside)
    if alteration.jax[-1:].isdigit():
        those = (each for each in until_refused(of_layers.alterations_of(rerun)) if isinstance(each, Alteration))
        yield from (each for each in those if each.torch == alteration.torch and each.jax != alteration.jax)


def supposed(says: str, number: float) -> tuple[bool, bool, int]:
    """How much a cause supposes: what leaves something out the least, and then numbers of few digits; nobody does a thing
    twice where another number is as much."""
    name = say(number).rpartition(" = ")[2]
    return not says.endswith(PLAINEST), says.endswith("does it twice"), sum(letter.isdigit() for letter in name)


def near_enough(torch: np.ndarray, jax: np.ndarray) -> float:
    """The largest residual of a cause: where the difference is large, what jax's code rounds to float32 may stay; where it is
    tiny, a cause is well below it."""
    apart = off(jax, torch)
    return FLOAT32 if np.inf > apart >= LARGE * FLOAT32 else min(EXPLAINED, apart / CLEAR)


def first_known(
    rerun: Rerun, known: Mapping[tuple[str, str], float], jax: np.ndarray, limit: float, effort: Effort
) -> list[Fit]:
    """What explained another difference, and explains this one."""
    for alteration in every(rerun) if known else ():
        if (number := known.get(alteration[:2])) is not None:
            altered = numbered(alteration, number)
            if (residual := off(array(rerun, altered, effort), jax)) <= limit:
                others = elsewhere(rerun, altered, limit)
                if not others.contradicts:
                    fit = Fit(str(altered), residual, Found(rerun.owner, *alteration[:2], number), others.gives)
                    return [fit._replace(says=as_a_fact(rerun, alteration, fit, jax, limit, effort))]
    return []


def explain_by_known(rerun: Rerun, torch: np.ndarray, jax: np.ndarray, found: Found, effort: Effort) -> str:
    """What is said of an alteration that explained another difference, if it explains this one."""
    if not np.isfinite(jax).any() or not rerun.begins:
        return ""
    fits = first_known(rerun, {found[1:3]: found.number}, jax, near_enough(torch, jax), effort)
    return said(fits) if fits else ""


def numbered(alteration: Alteration | Dial, number: float) -> Alteration:
    """With the number that was found, where one was solved for."""
    return alteration.at(number, say(number)) if isinstance(alteration, Dial) else alteration


def tried(
    rerun: Rerun, alteration: Alteration | Dial, torch: np.ndarray, jax: np.ndarray, limit: float, effort: Effort
) -> tuple[str, float, float] | None:
    """What is said of it, if it gives jax's array, how far it is off, and its number."""
    if isinstance(alteration, Alteration):
        residual = off(array(rerun, alteration, effort), jax)
        return (str(alteration), residual, 0.0) if residual <= limit else None
    if not np.isfinite(jax).all():
        return None  # a number cannot be solved for
    without = off(array(rerun, alteration.at(math.inf, ""), effort), jax) if alteration.absent else math.inf
    found = solved(lambda x: array(rerun, alteration.at(x, ""), effort), alteration, torch, jax, limit)
    if without <= limit and not (found and is_ordinary(found[0], alteration.start)):
        found = math.inf, without
    return (str(alteration.at(found[0], say(found[0]))), found[1], found[0]) if found and found[1] <= limit else None


def is_ordinary(number: float, torchs: float) -> bool:
    """Whether it may be meant, beside torch's number: a cap that nothing reaches is none."""
    return torchs != 0 and 1 / ORDINARY <= abs(number / torchs) <= ORDINARY


def array(rerun: Rerun, alteration: Alteration, effort: Effort) -> np.ndarray | None:
    """torch's, so altered; None where that cannot be."""
    effort.spend(rerun.cost)
    try:
        return rerun.array(alteration.inside())
    except Exception:  # a model refuses in its own ways
        return None
