"""Explainers of a difference: one list, in the order in which they are asked."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxformer.errors import message_of
from jaxformer.parity.diagnose.by_arrays.attention import explain_attention, explain_empty_rows
from jaxformer.parity.diagnose.by_arrays.gradients import explain_factor, explain_gradient
from jaxformer.parity.diagnose.by_arrays.norms import explain_cancelled, explain_epsilon, explain_running
from jaxformer.parity.diagnose.by_arrays.order import (
    explain_axes,
    explain_ids,
    explain_later,
    explain_order,
    explain_read_ids,
    explain_rows,
)
from jaxformer.parity.diagnose.by_arrays.values import (
    appearance,
    explain_cast,
    explain_plainly,
    explain_sum,
    is_another_array,
    is_symptom,
)
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.evidence import SCORES, STATISTIC, WEIGHTS, Difference, difference_of
from jaxformer.parity.diagnose.formulas import HYPOTHESES
from jaxformer.parity.diagnose.formulas.choices import explain_by
from jaxformer.parity.diagnose.mesh import explain_mesh
from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey

T = TypeVar("T")
INPUT = "input of "
"""Beginning of the description of an array that a module's code hands to another one: a cause that the arrays alone tell has to
say that it is about this array."""
TAP = "; it is shorter module by module: pass what each returns through jf.tap(torch's name, x)"
"""Advice where jax has no module and no tap that could be paired."""


class Explainer(NamedTuple):
    """Explainer of one kind of cause."""

    name: str
    kinds: tuple[str, ...]
    """Kinds of differences that it explains."""
    dtypes: str
    """numpy's letters for the kinds of dtypes that both arrays may have; their shapes then have to be equal. '' takes any
    arrays."""
    explain: Callable[[Difference], Candidate | Diagnosis | None]
    """Function that returns the cause of a difference, if it is of this kind."""

    def fits(self, difference: Difference) -> bool:
        """True if the explainer can be asked about this difference."""
        types = {difference.jax.dtype.kind, difference.torch.dtype.kind}
        return difference.kind in self.kinds and (not self.dtypes or (same_shapes(difference) and types <= {*self.dtypes}))


def same_shapes(difference: Difference) -> bool:
    """True if both arrays have the same shape and are not empty."""
    return difference.jax.shape == difference.torch.shape and difference.torch.size > 0


def explain_replay(difference: Difference) -> Diagnosis:
    """Search for a mutation of torch's code that gives jax's array, if torch's model is available.

    Several mutations may give the same integers, so the certainty of such candidates is 'integers'.
    """
    if not (replays := [*difference.replays()]):
        return Diagnosis()
    from jaxformer.parity.diagnose.search import Search

    torch, jax = (array.astype(np.float64) for array in (difference.torch, difference.jax))
    if kind_of(torch) == kind_of(jax) == "added":  # added masks: their large negative numbers may differ
        jax = np.where(jax < 0, torch.min(), 0.0)
    found = Diagnosis()
    with Budget(difference.session) as budget:
        searches = [Search(each, torch, jax, budget) for each in replays]
        before = [each.as_before for each in searches if len(searches) > 1]
        for way in (*before, *(each.diagnosis for each in searches), *(each.of_two for each in searches)):
            found = found or way()
    found = replace(found, nearly=next((each.nearly for each in searches if each.nearly), ""))
    return found.as_integers() if difference.torch.dtype.kind != "f" else found


def explain_stops(difference: Difference) -> Diagnosis:
    """Search for stopped gradients in the backward pass of torch's code, if torch's model is available."""
    if (backward := difference.backward()) is None:
        return Diagnosis()
    from jaxformer.parity.diagnose.backward import explain_stopped

    return explain_stopped(backward, difference.session)


def explain_equal(difference: Difference) -> Diagnosis:
    """Search for mutations of torch's code that leave its values as they are, if torch's model is available."""
    if (backward := difference.backward()) is None or (values := difference.values()) is None:
        return Diagnosis()
    from jaxformer.parity.diagnose.equal_values import explain_equal_values

    return explain_equal_values(values, backward, difference.session)


EXPLAINERS = (
    Explainer("another type", ("value", SCORES, WEIGHTS), "", explain_cast),
    Explainer("a variance in one pass", ("value",), "f", explain_cancelled),
    Explainer("another attention", (SCORES, WEIGHTS), "f", explain_attention),
    Explainer("a gradient that stops, or rows without one", ("gradient",), "f", explain_gradient),
    Explainer("a gradient that stops in torch's code", ("gradient", "gradients"), "f", explain_stops),
    Explainer("another gradient of equal values", ("gradient", "gradients"), "f", explain_equal),
    Explainer("one gradient that stops, or rows without one", ("gradients",), "f", explain_gradient),
    Explainer("a factor of a gradient", ("gradient", "gradients"), "f", explain_factor),
    Explainer("another running statistic", (STATISTIC,), "f", explain_running),
    Explainer("axes in another order", ("value",), "", explain_axes),
    Explainer("shifted ids", ("value",), "iu", explain_ids),
    Explainer("ids of another input", ("value",), "iu", explain_read_ids),
    Explainer("other rows of a table", ("value",), "", explain_rows),
    *(Explainer(f"another {each.name}", ("value",), "f", partial(explain_by, each)) for each in HYPOTHESES),
    Explainer("an unusual epsilon", ("value",), "f", explain_epsilon),
    Explainer("other factors in a sum", ("value",), "biufc", explain_sum),
    Explainer("a factor, a number added, a smaller type", ("value",), "f", explain_plainly),
    Explainer("another order along an axis", ("value",), "f", explain_order),
    Explainer("torch's code, altered", ("value",), "fiu", explain_replay),
    Explainer("an array of a later call", ("value",), "f", explain_later),
)
"""All explainers in their order; the first that finds a cause ends the search."""


def cause_of(traced: Traced, mismatch: Mismatch, *, gradient: bool = False, near: bool = False) -> Diagnosis:
    """Find the cause of a mismatch; an empty diagnosis if the two sides draw different random numbers. `gradient`: its arrays
    are gradients. `near`: leave out the replay of the widest call, whose code reaches back before other taps."""
    if traced.untied:
        return Diagnosis()
    return diagnosed(traced.session, lambda: explain(difference_of(traced, mismatch, gradient=gradient, near=near)))


def cause_of_all(traced: Traced, mismatches: Sequence[Mismatch], *, near: bool) -> Diagnosis:
    """Find why several arrays of one call's code differ: one candidate that gives all of jax's arrays, or a cause for each.

    If one array has no cause, the others' are left out too, since then a candidate that gives another array is not what jax's
    code does; but for one that is an array of the call in the place of another. A cause that tells what jax's array is names
    the array, unless it is the call's output.
    """
    causes: dict[str, Diagnosis] = {}
    left = [*mismatches]
    while left:
        mismatch, *left = left
        if not (cause := cause_of(traced, mismatch, near=near)):
            if handed := {what: each for what, each in causes.items() if each.first and is_another_array(each.first)}:
                return Diagnosis(beside=handed)
            first = next(iter(causes.values()), None)
            return replace(cause, nearly=f"{first}, which does not give jax's {mismatch.what}") if first else cause
        gives = cause.first.explains if cause.first else frozenset()
        if gives.issuperset(torchs_place(traced, each) for each in mismatches):
            return cause
        if not any(cause.same_as(other) for other in causes.values()):
            causes[mismatch.what] = cause
        left = [each for each in left if torchs_place(traced, each) not in gives]
    (what, only), *more = causes.items()
    names_array = only.first and (only.first.mutation.change.torch or not what.startswith(INPUT))
    return only if not more and names_array else Diagnosis(beside=causes)


def mesh_cause(traced: Traced, *, anyway: bool = False) -> Diagnosis:
    """Find why the devices of a mesh give other outputs; `anyway`: even if one device does, too."""
    return diagnosed(traced.session, lambda: explain_mesh(traced, anyway=anyway))


def torchs_place(traced: Traced, mismatch: Mismatch) -> ArrayKey | None:
    """Return the place of torch's array; None for the gradient of a weight."""
    return mismatch.place and mismatch.place._replace(site=traced.pairs[mismatch.place.site])


def served_by(traced: Traced, mismatch: Mismatch, candidate: Candidate) -> Diagnosis:
    """Return the cause if a candidate of another difference explains this one too; else an empty diagnosis."""

    def found() -> Diagnosis:
        from jaxformer.parity.diagnose.search import Search

        difference = difference_of(traced, mismatch, gradient=False)
        arrays = difference.torch.astype(np.float64), difference.jax.astype(np.float64)
        replays = (replay for replay in difference.replays() if replay.owner == candidate.owner)
        with Budget(traced.session) as budget:
            return next(filter(None, (Search(replay, *arrays, budget).by(candidate) for replay in replays)), Diagnosis())

    return diagnosed(traced.session, found)


def replay_cause_of(traced: Traced, mismatch: Mismatch) -> Diagnosis:
    """Find the cause of arrays with different shapes, by mutations of torch's code alone."""
    if traced.untied:
        return Diagnosis()
    return diagnosed(traced.session, lambda: explain_replay(difference_of(traced, mismatch, gradient=False)))


def looks_of(traced: Traced, mismatch: Mismatch, vain: Diagnosis) -> str:
    """Describe a difference without a cause: its appearance, and the explainers and mutations that were tried in vain."""
    if traced.untied:
        return ""
    session = traced.session
    looks = attempt("what it looks like", lambda: appearance(mismatch.jax, mismatch.torch), session=session) or ""
    if vain.nearly:
        looks = f"{looks}; " * bool(looks) + f"its first difference is as if {vain.nearly}"
    tried = f"{len(EXPLAINERS)} kinds of causes" + (f" and {vain.tried} changes of torch's code" if vain.tried else "")
    if vain.spent and session.seconds:
        tried += f", as many as the budget of search_seconds = {session.seconds:g} allows"
        tried += TAP if set(traced.pairs) == {CALL} else ""
    elif vain.spent:
        tried += ", no changes of torch's code (search_seconds 0)"
    if not np.isfinite(mismatch.torch).all():
        tried += "; torch's array has NaN or infinite entries, so its code was not replayed"
    if session.refused:
        tried += f"; failed: {', '.join(f'{name} {count} times' for name, count in session.refused.items())}"
    return f"{f'looks: {looks}; ' if looks else ''}tried: {tried}"


def explain(difference: Difference) -> Diagnosis:
    """Ask the explainers in order and return the first cause; a symptom counts only if nothing else is found.

    The diagnosis also says if both sides differ only in rows where every key is masked.
    """
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
    """Return what an explanation finds; an empty diagnosis if it fails."""
    found = attempt("a cause", explanation, session=session)
    return Diagnosis() if found is None else found


def attempt(name: str, explanation: Callable[..., T], *given: Any, session: Session | None = None) -> T | None:
    """Return what an explanation finds, or None if it fails, so that a comparison goes on without a cause.

    A failure is a bug of the explanation: it gives a warning, and is counted in the session.
    """
    with np.errstate(all="ignore"):
        try:
            return explanation(*given)
        except Exception as error:
            if session:
                session.refused[name] += 1
            said = f"the search for {name} failed: {type(error).__name__}: {message_of(error)}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
            return None
