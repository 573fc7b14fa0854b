"""The search: torch's code with one thing altered, the plain ones first, until it gives jax's array."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.parity.explain.alterations import (
    losses,
    of_attention,
    of_buffers,
    of_children,
    of_discretisation,
    of_draws,
    of_ids,
    of_loops,
    of_masks,
    of_modules,
    of_operands,
    of_operations,
    of_pairs,
    of_parts,
    of_places,
    of_recurrences,
    of_results,
    of_rotations,
    of_twins,
)
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Found
from jaxformer.parity.explain.alterations.elsewhere import elsewhere
from jaxformer.parity.explain.alterations.fits import Fit, also, is_new, said
from jaxformer.parity.explain.alterations.losses import is_certain
from jaxformer.parity.explain.alterations.numbers import off, solved
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.constants import say
from jaxformer.parity.explain.effort import Effort
from jaxformer.parity.numerics.metrics import EXPLAINED

FLOAT32, LARGE = 3e-7, 1e4
"""A residual of float32's rounding, as tables have that jax's code computes; and how many times larger the difference is."""
CLEAR = 100
"""How many times smaller than the difference a residual is, at least."""
REFUSED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""How an alteration cannot be made."""
PLAINEST = ("left out", "leaves it out", "operand alone")
"""How alterations end that only leave something out."""
MOST_RUNS = 4
"""Of one operation, each of which may be altered alone."""


def explain_altered(rerun: Rerun, torch: np.ndarray, jax: np.ndarray, hints: dict[Any, Any], effort: Effort) -> str:
    """'torch eps 1e-05; jax eps 1e-06 (residual 2e-16)', or '' where no alteration gives jax's array. `hints` has what
    explained other modules, and how many alterations were tried. It gives up where the effort is spent."""
    if says := explain_as_before(rerun, torch, jax, hints, effort):
        return says
    if not np.isfinite(jax).any() or not rerun.begin():
        return ""
    return noted(first_found(rerun, torch, jax, near_enough(torch, jax), hints, effort), hints)


def explain_as_before(rerun: Rerun, torch: np.ndarray, jax: np.ndarray, hints: dict[Any, Any], effort: Effort) -> str:
    """What is said of an alteration that explained another module, if it explains this one."""
    known = hints.setdefault("alterations", {})
    if not known or not np.isfinite(jax).any() or not rerun.begin():
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
    for kind, most in kinds(rerun):
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
                if (known := as_a_fact(rerun, alteration, fit.says, jax, limit, effort)) != fit.says:
                    vague.append(fit._replace(says=known))
                else:
                    (found if fit.residual <= EXPLAINED else rounded).append(fit)
        if found or vague or effort.is_spent:
            break
    best = sorted(found, key=lambda each: (-len(each.gives), *supposed(each.says, each.found.number)))
    best = [each._replace(says=also(each.says, each.found)) for each in best[:1] if vague] or best or vague[:1] or rounded[:1]
    return [each for each in best if each.gives == best[0].gives]


def as_a_fact(rerun: Rerun, alteration: Alteration | Dial, says: str, jax: np.ndarray, limit: float, effort: Effort) -> str:
    """What is said, 'as if' where a number that was tried is not the only one that fits, as of a window beyond the text, or of
    what is rounded to whole numbers."""
    if not any(off(array(rerun, each, effort), jax) <= limit for each in beside(rerun, alteration)):
        return says
    return also(says, alteration)


def beside(rerun: Rerun, alteration: Alteration | Dial) -> Iterator[Alteration]:
    """The same with other whole numbers."""
    if not isinstance(alteration, Alteration):
        return
    for inside in alteration.near:
        yield alteration._replace(inside=inside)
    if alteration.jax[-1:].isdigit():
        those = (each for each in until_refused(of_states(rerun)) if isinstance(each, Alteration))
        yield from (each for each in those if each.torch == alteration.torch and each.jax != alteration.jax)


def supposed(says: str, number: float) -> tuple[bool, int]:
    """How much a cause supposes: what leaves something out the least, and then numbers of few digits."""
    name = say(number).rpartition(" = ")[2]
    return not says.endswith(PLAINEST), sum(letter.isdigit() for letter in name)


def near_enough(torch: np.ndarray, jax: np.ndarray) -> float:
    """The largest residual of a cause: where the difference is large, what jax's code rounds to float32 may stay; where it is
    tiny, a cause is well below it."""
    apart = off(jax, torch)
    return FLOAT32 if np.inf > apart >= LARGE * FLOAT32 else min(EXPLAINED, apart / CLEAR)


def kinds(rerun: Rerun) -> tuple[tuple[Iterator[Alteration | Dial], int], ...]:
    """Of alterations, the plain ones first; and how many of each that fit are named."""
    return (
        (losses.alterations_of(rerun), 1),
        (of_draws.alterations_of(rerun), 1),
        (of_buffers.alterations_of(rerun), 1),
        (itertools.chain(of_places.layers(rerun), of_twins.alterations_of(rerun)), 1),
        (itertools.chain(of_states(rerun), of_ids.roundings(rerun.operations)), 1),
        (of_masks.alterations_of(rerun), 1),
        (of_rotations.alterations_of(rerun), 1),
        (of_attention.alterations_of(rerun), 1),
        (of_readings(rerun), 1),
        (of_children.alterations_of(rerun), 2),
        (of_places.alterations_of(rerun), 2),
        (in_operations(rerun), 3),
        (behind_operations(rerun), 3),
        (of_places.moved(rerun), 1),
        (itertools.chain.from_iterable(map(of_operands.numbers, rerun.operations)), 1),
        (in_runs(rerun), 1),
    )


def every(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """All of them."""
    for kind, _ in kinds(rerun):
        yield from until_refused(kind)


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
                    says = as_a_fact(rerun, alteration, str(altered), jax, limit, effort)
                    return [Fit(says, residual, Found(rerun.owner, *alteration[:2], number), others.gives)]
    return []


def explain_by_known(rerun: Rerun, torch: np.ndarray, jax: np.ndarray, found: Found, effort: Effort) -> str:
    """What is said of an alteration that explained another difference, if it explains this one."""
    if not np.isfinite(jax).any() or not rerun.begin():
        return ""
    fits = first_known(rerun, {found[1:3]: found.number}, jax, near_enough(torch, jax), effort)
    return said(fits) if fits else ""


def until_refused(alterations: Iterator[Alteration | Dial]) -> Iterator[Alteration | Dial]:
    """All of them, or those before one that cannot be made."""
    try:
        yield from alterations
    except REFUSED:
        return


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
    found = solved(lambda x: array(rerun, alteration.at(x, ""), effort), alteration, torch, jax, limit)
    return (str(alteration.at(found[0], say(found[0]))), found[1], found[0]) if found and found[1] <= limit else None


def array(rerun: Rerun, alteration: Alteration, effort: Effort) -> np.ndarray | None:
    """torch's, so altered; None where that cannot be."""
    effort.spend(rerun.cost)
    try:
        return rerun.array(alteration.inside())
    except Exception:  # a model refuses in its own ways
        return None


def of_states(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of the module, and of those inside of it that jax has not; what they read otherwise comes in `of_readings`."""
    own, names = rerun.module, names_of(rerun)
    seen: set[int] = set()
    for name in names:
        yield from of_modules.readings(own.get_submodule(name), name, ("left out",))
    for name in names:
        yield from of_modules.settings(own.get_submodule(name), name, seen)
    yield from of_modules.taken_for(own)


def of_readings(rerun: Rerun) -> Iterator[Alteration]:
    """What these modules read as their parameters."""
    for name in names_of(rerun):
        yield from of_modules.readings(rerun.module.get_submodule(name), name, [*of_modules.READINGS][1:])


def names_of(rerun: Rerun) -> list[str]:
    """Of these modules."""
    own = rerun.module
    inner = {site.path.removeprefix(f"{rerun.owner.path}.") for site in rerun.borders if site in rerun.given}
    names = [name for name, _ in own.named_modules() if not any(name == path or name.startswith(f"{path}.") for path in inner)]
    if len(names) > 40:
        names = [name for name in names if name.count(".") < 2]
    return names


def in_operations(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of each operation of its code, kind by kind; of two; and of what one reads."""
    for operation in rerun.operations:
        yield from of_operations.of_kinds(operation, (of_recurrences.alterations_of, of_ids.alterations_of, *of_parts.KINDS))
        yield from of_operations.alterations_of(operation)
    for several in (of_parts.copies, of_loops.alterations_of, of_discretisation.alterations_of):
        yield from until_refused(several(rerun.operations))
    yield from of_pairs.alterations_of(rerun)
    yield from of_operands.alterations_of(rerun.operations)


def in_runs(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of each operation of code that is called several times, in one of these calls alone."""
    for operation in rerun.operations:
        for only in range(len(operation.runs)) if 1 < len(operation.runs) <= MOST_RUNS else ():
            yield from of_operations.alterations_of(replace(operation, only=only))


def behind_operations(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of what each operation gives; a multiple of it comes last."""
    dials: list[Dial] = []
    for operation in rerun.operations:
        for alteration in of_results.alterations_of(operation):
            if isinstance(alteration, Dial):
                dials.append(alteration)
            else:
                yield alteration
    yield from dials
