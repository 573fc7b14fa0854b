"""The explainers of a difference: one list, in the order in which they are asked."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import ParityError, message_of
from jaxformer.parity.capture.call_sites import ArrayKey
from jaxformer.parity.explain.alterations.altered import Found
from jaxformer.parity.explain.appearance import appearance
from jaxformer.parity.explain.by_formula import explain_by
from jaxformer.parity.explain.effort import Effort
from jaxformer.parity.explain.empty_rows import ONLY, explain_empty_rows
from jaxformer.parity.explain.evidence import SCORES, STATISTIC, WEIGHTS, Difference, difference_of
from jaxformer.parity.explain.factor import explain_plainly
from jaxformer.parity.explain.fast_variance import explain_cancelled
from jaxformer.parity.explain.formulas import HYPOTHESES
from jaxformer.parity.explain.gradients import explain_gradient
from jaxformer.parity.explain.reordered import explain_order
from jaxformer.parity.explain.rows import explain_rows
from jaxformer.parity.explain.running_statistics import explain_running
from jaxformer.parity.explain.scores_and_weights import explain_attention
from jaxformer.parity.explain.sums import explain_sum
from jaxformer.parity.explain.types_and_axes import explain_axes, explain_cast, explain_ids
from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced

FAILURES = (ArithmeticError, LookupError, MemoryError, ParityError, TypeError, ValueError)
"""How arrays break an explanation."""


class Explainer(NamedTuple):
    """One kind of cause."""

    name: str
    kinds: tuple[str, ...]
    """Of differences."""
    dtypes: str
    """The kinds of types that both sides' arrays may have, as numpy's letters, where their shapes have to be the same; '' takes
    any arrays."""
    explain: Callable[[Difference], str]
    """The cause as a sentence, or '' where it is another one."""

    def fits(self, difference: Difference) -> bool:
        """Whether it can explain this difference."""
        types = {difference.jax.dtype.kind, difference.torch.dtype.kind}
        return difference.kind in self.kinds and (not self.dtypes or (same_shapes(difference) and types <= {*self.dtypes}))


def same_shapes(difference: Difference) -> bool:
    """Of arrays that are not empty."""
    return difference.jax.shape == difference.torch.shape and difference.torch.size > 0


def explain_rerun(difference: Difference) -> str:
    """By torch's own code, if torch is at hand. Several changes of it may give the same integers: none is a fact."""
    if not (reruns := [*difference.reruns()]):
        return ""
    torch, jax = (array.astype(np.float64) for array in (difference.torch, difference.jax))
    hints, says, are_whole = difference.hints, "", difference.torch.dtype.kind != "f"
    effort = Effort.of(hints)
    before = effort.left
    if kind_of(torch) == kind_of(jax) == "added":  # masks, whose numbers may differ
        jax = np.where(jax < 0, torch.min(), 0.0)
    from jaxformer.parity.explain.alterations.explain import explain_altered, explain_as_before

    for rerun in reruns if len(reruns) > 1 else ():
        says = says or explain_as_before(rerun, torch, jax, hints, effort)
    for rerun in reruns:
        says = says or explain_altered(rerun, torch, jax, hints, effort)
    hints["effort"] -= before - effort.left
    hints["cut"] = effort.is_spent
    return f"as if {says}: other changes may give these integers too" if says and are_whole else says


def explain_stops(difference: Difference) -> str:
    """By torch's own code on the way back."""
    if (backward := difference.backward()) is None:
        return ""
    from jaxformer.parity.explain.alterations.stopped import explain_stopped

    return explain_stopped(backward, difference.hints)


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
    Explainer("torch's code, altered", ("value",), "fiu", explain_rerun),
)
"""The first that finds a cause names it."""


def cause_of(traced: Traced, mismatch: Mismatch, *, gradient: bool = False, near: bool = False) -> str:
    """Why a mismatch is there, as far as an explainer can tell; '' elsewhere, and where both sides drew other numbers.
    `gradient` if its arrays are gradients, `near` if the code that other taps go on with is not looked at."""
    traced.hints.update(tried=0, cut=False, found=None, gives=frozenset())
    traced.hints.pop("as if", None)
    if traced.untied:
        return ""
    return attempt("a cause", lambda: explain(difference_of(traced, mismatch, gradient=gradient, near=near)))


def cause_of_all(traced: Traced, mismatches: Sequence[Mismatch], *, near: bool) -> str:
    """Why arrays that one call's code makes differ: what gives all of jax's, or one cause beside the other. '' where one of
    them is not explained: then what gives another one is not what jax's code does."""
    causes: list[tuple[Mismatch, str]] = []
    found, left = None, [*mismatches]
    while left:
        mismatch, *left = left
        if not (cause := cause_of(traced, mismatch, near=near)):
            if causes:
                traced.hints["as if"] = f"{causes[0][1]}, which does not give jax's {mismatch.what}"
            return ""
        gives, places = traced.hints["gives"], [torchs_place(traced, each) for each in mismatches]
        if gives.issuperset(places):
            return cause
        causes += [] if any(plain(cause) == plain(other) for _, other in causes) else [(mismatch, cause)]
        found = found or found_of(traced)
        left = [each for each in left if torchs_place(traced, each) not in gives]
    traced.hints["found"] = found if len(causes) == 1 else None
    return causes[0][1] if len(causes) == 1 else "; beside it, ".join(f"{each.what}: {cause}" for each, cause in causes)


def torchs_place(traced: Traced, mismatch: Mismatch) -> ArrayKey | None:
    """Where torch has the array."""
    return mismatch.place and mismatch.place._replace(site=traced.pairs[mismatch.place.site])


def plain(cause: str) -> str:
    """Without its residual."""
    return cause.partition(" (residual")[0]


def found_of(traced: Traced) -> Found | None:
    """The change of torch's code that was the last cause, if it was one."""
    return traced.hints.get("found")


def served_by(traced: Traced, mismatch: Mismatch, found: Found) -> str:
    """The cause, if a change of torch's code that explained another difference explains this one."""

    def says() -> str:
        from jaxformer.parity.explain.alterations.explain import explain_by_known

        difference = difference_of(traced, mismatch, gradient=False)
        arrays = difference.torch.astype(np.float64), difference.jax.astype(np.float64)
        reruns = (rerun for rerun in difference.reruns() if rerun.owner == found.owner)
        said = (explain_by_known(rerun, *arrays, found, Effort.of(traced.hints)) for rerun in reruns)
        return next(filter(None, said), "")

    return attempt("a cause", says)


def rerun_cause_of(traced: Traced, mismatch: Mismatch) -> str:
    """Why arrays of two shapes differ, as far as torch's code tells."""
    if traced.untied:
        return ""
    return attempt("a cause", lambda: explain_rerun(difference_of(traced, mismatch, gradient=False)))


def looks_of(traced: Traced, mismatch: Mismatch) -> str:
    """What was tried in vain, and what the difference looks like: where no cause is known."""
    if traced.untied:
        return ""
    tried = traced.hints.get("tried")
    looks = attempt("what it looks like", appearance, mismatch.jax, mismatch.torch)
    if one := traced.hints.get("as if"):
        looks = f"{looks}; " * bool(looks) + f"its first difference is as if {one}"
    vain = f"{len(EXPLAINERS)} kinds of causes" + (f" and {tried} changes of torch's code" if tried else "")
    vain += ", and no more: the search was cut" if traced.hints.get("cut") else ""
    return f"{f'looks: {looks}; ' if looks else ''}tried: {vain}"


def explain(difference: Difference) -> str:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)', or '' where no explainer finds a cause; and whether both sides
    differ only in rows in which every key is masked."""
    causes = (attempt(each.name, each.explain, difference) for each in EXPLAINERS if each.fits(difference))
    cause = next(filter(None, causes), "")
    asked = difference.kind == "value" and same_shapes(difference)
    empty = attempt("rows without keys", explain_empty_rows, difference) if asked else ""
    return f"{ONLY}: {cause or empty}" if empty else cause


def attempt(name: str, explanation: Callable[..., str], *given: Any) -> str:
    """What an explanation says, '' where it fails: a comparison goes on without a cause. What no array explains is a bug of
    the explanation, and warned of."""
    with np.errstate(all="ignore"):
        try:
            return explanation(*given)
        except FAILURES:
            return ""
        except Exception as error:
            said = f"the search for {name} failed: {type(error).__name__}: {message_of(error)}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
            return ""
