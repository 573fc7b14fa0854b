"""The explainers of a difference: one list, in the order in which they are asked."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxformer.errors import message_of
from jaxformer.parity.diagnose.by_arrays.attention import explain_attention, explain_empty_rows
from jaxformer.parity.diagnose.by_arrays.gradients import explain_gradient
from jaxformer.parity.diagnose.by_arrays.norms import explain_cancelled, explain_running
from jaxformer.parity.diagnose.by_arrays.order import explain_axes, explain_ids, explain_order, explain_rows
from jaxformer.parity.diagnose.by_arrays.values import appearance, explain_cast, explain_plainly, explain_sum, is_symptom
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.evidence import SCORES, STATISTIC, WEIGHTS, Difference, difference_of
from jaxformer.parity.diagnose.formulas import HYPOTHESES
from jaxformer.parity.diagnose.formulas.choices import explain_by
from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import ArrayKey

T = TypeVar("T")


class Explainer(NamedTuple):
    """One kind of cause."""

    name: str
    kinds: tuple[str, ...]
    """Of differences."""
    dtypes: str
    """The kinds of types that both sides' arrays may have, as numpy's letters, where their shapes have to be the same; '' takes
    any arrays."""
    explain: Callable[[Difference], Candidate | Diagnosis | None]
    """The cause, if it is of this kind."""

    def fits(self, difference: Difference) -> bool:
        """Whether it can explain this difference."""
        types = {difference.jax.dtype.kind, difference.torch.dtype.kind}
        return difference.kind in self.kinds and (not self.dtypes or (same_shapes(difference) and types <= {*self.dtypes}))


def same_shapes(difference: Difference) -> bool:
    """Of arrays that are not empty."""
    return difference.jax.shape == difference.torch.shape and difference.torch.size > 0


def explain_replay(difference: Difference) -> Diagnosis:
    """By torch's own code, if torch is at hand. Several mutations of it may give the same integers: none is a fact."""
    if not (replays := [*difference.replays()]):
        return Diagnosis()
    from jaxformer.parity.diagnose.search import Search

    torch, jax = (array.astype(np.float64) for array in (difference.torch, difference.jax))
    if kind_of(torch) == kind_of(jax) == "added":  # masks, whose numbers may differ
        jax = np.where(jax < 0, torch.min(), 0.0)
    found = Diagnosis()
    with Budget(difference.session) as budget:
        searches = [Search(each, torch, jax, budget) for each in replays]
        for way in (*(each.as_before for each in searches if len(searches) > 1), *(each.diagnosis for each in searches)):
            found = found or way()
    found = replace(found, nearly=next((each.nearly for each in searches if each.nearly), ""))
    return found.as_integers() if difference.torch.dtype.kind != "f" else found


def explain_stops(difference: Difference) -> Diagnosis:
    """By torch's own code on the way back."""
    if (backward := difference.backward()) is None:
        return Diagnosis()
    from jaxformer.parity.diagnose.backward import explain_stopped

    return explain_stopped(backward, difference.session)


EXPLAINERS = (
    Explainer("another type", ("value", SCORES, WEIGHTS), "", explain_cast),
    Explainer("a variance in one pass", ("value",), "f", explain_cancelled),
    Explainer("another attention", (SCORES, WEIGHTS), "f", explain_attention),
    Explainer("a factor of a gradient, or rows without one", ("gradient",), "f", explain_gradient),
    Explainer("a gradient that stops in torch's code", ("gradient", "gradients"), "f", explain_stops),
    Explainer("a factor of one gradient, or rows without one", ("gradients",), "f", explain_gradient),
    Explainer("another running statistic", (STATISTIC,), "f", explain_running),
    Explainer("axes in another order", ("value",), "", explain_axes),
    Explainer("shifted ids", ("value",), "iu", explain_ids),
    Explainer("other rows of a table", ("value",), "", explain_rows),
    *(Explainer(f"another {each.name}", ("value",), "f", partial(explain_by, each)) for each in HYPOTHESES),
    Explainer("other factors in a sum", ("value",), "biufc", explain_sum),
    Explainer("a factor, a number added, a smaller type", ("value",), "f", explain_plainly),
    Explainer("another order along an axis", ("value",), "f", explain_order),
    Explainer("torch's code, altered", ("value",), "fiu", explain_replay),
)
"""The first that finds a cause names it."""


def cause_of(traced: Traced, mismatch: Mismatch, *, gradient: bool = False, near: bool = False) -> Diagnosis:
    """Why a mismatch is there, as far as an explainer can tell; nothing where both sides drew other numbers. `gradient` if its
    arrays are gradients, `near` if the code that other taps go on with is not looked at."""
    if traced.untied:
        return Diagnosis()
    return diagnosed(traced.session, lambda: explain(difference_of(traced, mismatch, gradient=gradient, near=near)))


def cause_of_all(traced: Traced, mismatches: Sequence[Mismatch], *, near: bool) -> Diagnosis:
    """Find why arrays that one call's code makes differ: what gives all of jax's, or one cause beside the other. Nothing where
    one of them is not explained: then what gives another one is not what jax's code does."""
    causes: dict[str, Diagnosis] = {}
    left = [*mismatches]
    while left:
        mismatch, *left = left
        if not (cause := cause_of(traced, mismatch, near=near)):
            first = next(iter(causes.values()), None)
            return replace(cause, nearly=f"{first}, which does not give jax's {mismatch.what}") if first else cause
        gives = cause.first.explains if cause.first else frozenset()
        if gives.issuperset(torchs_place(traced, each) for each in mismatches):
            return cause
        if not any(cause.same_as(other) for other in causes.values()):
            causes[mismatch.what] = cause
        left = [each for each in left if torchs_place(traced, each) not in gives]
    return next(iter(causes.values())) if len(causes) == 1 else Diagnosis(beside=causes)


def torchs_place(traced: Traced, mismatch: Mismatch) -> ArrayKey | None:
    """Where torch has the array."""
    return mismatch.place and mismatch.place._replace(site=traced.pairs[mismatch.place.site])


def served_by(traced: Traced, mismatch: Mismatch, candidate: Candidate) -> Diagnosis:
    """The cause, if a mutation that explained another difference explains this one."""

    def found() -> Diagnosis:
        from jaxformer.parity.diagnose.search import Search

        difference = difference_of(traced, mismatch, gradient=False)
        arrays = difference.torch.astype(np.float64), difference.jax.astype(np.float64)
        replays = (replay for replay in difference.replays() if replay.owner == candidate.owner)
        with Budget(traced.session) as budget:
            return next(filter(None, (Search(replay, *arrays, budget).by(candidate) for replay in replays)), Diagnosis())

    return diagnosed(traced.session, found)


def replay_cause_of(traced: Traced, mismatch: Mismatch) -> Diagnosis:
    """Why arrays of two shapes differ, as far as torch's code tells."""
    if traced.untied:
        return Diagnosis()
    return diagnosed(traced.session, lambda: explain_replay(difference_of(traced, mismatch, gradient=False)))


def looks_of(traced: Traced, mismatch: Mismatch, vain: Diagnosis) -> str:
    """What was tried in vain, and what the difference looks like: where no cause is known."""
    if traced.untied:
        return ""
    session = traced.session
    looks = attempt("what it looks like", lambda: appearance(mismatch.jax, mismatch.torch), session=session) or ""
    if vain.nearly:
        looks = f"{looks}; " * bool(looks) + f"its first difference is as if {vain.nearly}"
    tried = f"{len(EXPLAINERS)} kinds of causes" + (f" and {vain.tried} changes of torch's code" if vain.tried else "")
    if vain.spent and session.seconds:
        tried += f", and no more: the search was cut (search_seconds {session.seconds:g})"
    elif vain.spent:
        tried += ", no changes of torch's code (search_seconds 0)"
    if not np.isfinite(mismatch.torch).all():
        tried += "; torch's array has NaN or infinite entries, so its code was not replayed"
    if session.refused:
        tried += f"; failed: {', '.join(f'{name} {count} times' for name, count in session.refused.items())}"
    return f"{f'looks: {looks}; ' if looks else ''}tried: {tried}"


def explain(difference: Difference) -> Diagnosis:
    """What the first explainer finds that finds a cause, a symptom last; and whether both sides differ only in rows in which
    every key is masked."""
    found, symptom = Diagnosis(), None
    for each in EXPLAINERS:
        if not found and each.fits(difference):
            cause = attempt(each.name, partial(each.explain, difference), session=difference.session)
            if isinstance(cause, Candidate) and is_symptom(cause):
                symptom, cause = cause, None
            found = Diagnosis((cause,)) if isinstance(cause, Candidate) else found if cause is None else cause
    if symptom and not found:
        found = replace(found, candidates=(symptom,))
    asked = difference.kind == "value" and same_shapes(difference)
    empty = attempt("rows without keys", partial(explain_empty_rows, difference), session=difference.session) if asked else None
    return replace(found if found else Diagnosis((empty,)), empty_rows=True) if empty else found


def diagnosed(session: Session, explanation: Callable[[], Diagnosis]) -> Diagnosis:
    """What an explanation finds, or nothing where it fails."""
    found = attempt("a cause", explanation, session=session)
    return Diagnosis() if found is None else found


def attempt(name: str, explanation: Callable[..., T], *given: Any, session: Session | None = None) -> T | None:
    """What an explanation finds, None where it fails: a comparison goes on without a cause. A failure is a bug of the
    explanation: it is warned of, and counted in the session."""
    with np.errstate(all="ignore"):
        try:
            return explanation(*given)
        except Exception as error:
            if session:
                session.refused[name] += 1
            said = f"the search for {name} failed: {type(error).__name__}: {message_of(error)}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
            return None
