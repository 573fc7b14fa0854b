"""The explainers of a difference: one list, in the order in which they are asked."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.explain.by_formula import explain_by
from jaxformer.parity.explain.empty_rows import ONLY, explain_empty_rows
from jaxformer.parity.explain.evidence import SCORES, WEIGHTS, Difference, difference_of
from jaxformer.parity.explain.formulas import HYPOTHESES
from jaxformer.parity.explain.gradients import explain_gradient
from jaxformer.parity.explain.scores_and_weights import explain_masked_keys, explain_scores, explain_weights
from jaxformer.parity.explain.sums import explain_sum
from jaxformer.parity.explain.types_and_axes import explain_axes, explain_cast, explain_ids
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced

FAILURES = (ArithmeticError, LookupError, MemoryError, ParityError, TypeError, ValueError)
"""How arrays break an explanation."""


class Explainer(NamedTuple):
    """One kind of cause."""

    name: str
    kinds: tuple[str, ...]
    """Of differences."""
    fits: Callable[[Difference], bool]
    """Whether it can explain one of these kinds."""
    explain: Callable[[Difference], str]
    """The cause as a sentence, or '' where it is another one."""


def always(_: Difference) -> bool:
    """Of any types and shapes."""
    return True


def alike(difference: Difference) -> bool:
    """Of one shape, and not empty."""
    return difference.jax.shape == difference.torch.shape and difference.torch.size > 0


def integers(difference: Difference) -> bool:
    """Both sides' are ids of one shape."""
    return alike(difference) and difference.jax.dtype.kind == difference.torch.dtype.kind in ("i", "u")


def floats(difference: Difference) -> bool:
    """Both sides' are real floats of one shape."""
    return alike(difference) and difference.jax.dtype.kind == difference.torch.dtype.kind == "f"


def rows(difference: Difference) -> bool:
    """Both sides' are real floats of one shape with rows."""
    return floats(difference) and difference.torch.ndim > 0


def finite(difference: Difference) -> bool:
    """Both sides' are finite, and stand beside torch's scores."""
    beside = floats(difference) and difference.evidence.scores[-1].shape == difference.torch.shape
    return bool(beside and np.isfinite(difference.jax).all() and np.isfinite(difference.torch).all())


VALUE = ("value",)
EXPLAINERS = (
    Explainer("another type", ("value", SCORES, WEIGHTS), always, explain_cast),
    Explainer("a factor of attention's scores", (SCORES,), finite, explain_scores),
    Explainer("other masked keys", (WEIGHTS,), finite, explain_masked_keys),
    Explainer("a factor of the scores behind attention's weights", (WEIGHTS,), finite, explain_weights),
    Explainer("a factor of a gradient, or rows without one", ("gradient",), floats, explain_gradient),
    Explainer("axes in another order", VALUE, always, explain_axes),
    Explainer("shifted ids", VALUE, integers, explain_ids),
    *(Explainer(f"another {each.name}", VALUE, rows, partial(explain_by, each)) for each in HYPOTHESES),
    Explainer("other factors in a sum", VALUE, alike, explain_sum),
)
"""The first that finds a cause names it."""


def cause_of(traced: Traced, mismatch: Mismatch, *, gradient: bool = False) -> str:
    """Why a mismatch is there, as far as an explainer can tell; '' elsewhere. `gradient` if its arrays are gradients."""
    return attempt("a cause", lambda: explain(difference_of(traced, mismatch, gradient=gradient)))


def explain(difference: Difference) -> str:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)', or '' where no explainer finds a cause; and whether both sides
    differ only in rows in which every key is masked."""
    fitting = (each for each in EXPLAINERS if difference.kind in each.kinds and each.fits(difference))
    cause = next(filter(None, (attempt(each.name, each.explain, difference) for each in fitting)), "")
    asked = difference.kind == "value" and alike(difference)
    empty = attempt("rows without keys", explain_empty_rows, difference) if asked else ""
    return f"{ONLY}: {cause or empty}" if empty else cause


def attempt(name: str, explanation: Callable[..., str], *given: Any) -> str:
    """What an explanation says, '' where it fails: a comparison goes on without a cause. What no array explains is a bug of
    ours, and warned of."""
    with np.errstate(all="ignore"):
        try:
            return explanation(*given)
        except FAILURES:
            return ""
        except Exception as error:
            warnings.warn(f"the search for {name} failed: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
            return ""
