"""Consequences of differences elsewhere: values that a module forwards from a call inside, and gradients sent back through code
with wrong values."""

from collections.abc import Collection, Iterable

import numpy as np

from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.numerics.metrics import Error, over
from jaxformer.parity.runs.gradients_of_weights import Arrays, in_layers, own_gradients, weight_gradients
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, below
from jaxformer.parity.trace.partial_gradients import gradients_from


def is_handed_on(traced: Traced, mismatch: Mismatch, wrong: Collection[Site]) -> bool:
    """True if jax's array is the output of another call in the normal run that contains one of the `wrong` calls.

    The `wrong` calls own the difference then. torch's array must be such an output too, or a mask, which torch hands to every
    block.
    """
    if mismatch.child is None or not mismatch.torch.ndim:
        return False
    is_mask = mismatch.torch.dtype == bool or bool(kind_of(mismatch.torch))
    for site, other in traced.pairs.items():
        inside = any(below(owner.path, site.path) for owner in wrong if owner != mismatch.owner)
        if inside and site not in (CALL, mismatch.owner, mismatch.child):
            theirs = is_mask or holds(traced.reference.calls[other].output, mismatch.torch)
            if theirs and holds(traced.normal_run.outputs.get(site, ()), mismatch.jax):
                return True
    return False


def holds(arrays: Iterable[np.ndarray], wanted: np.ndarray) -> bool:
    """True if one of the arrays has the same values."""
    return any(np.array_equal(array, wanted) for array in arrays)


Found = list[tuple[Error, Mismatch]]


def without_consequences(traced: Traced, found: Found, wrong: set[Site]) -> Found:
    """Drop differences of gradients that wrong code sends back into right code. `wrong` are the calls whose values differ.

    The inputs of a tap are not seen. A tap whose own weights still get other gradients is wrong too.
    """
    left = without_what_comes_of(traced, found, wrong)
    taps = {site for site in traced.normal_run.taps if site in traced.pairs and site not in traced.valid} & differing(left)
    return left if taps <= wrong else without_what_comes_of(traced, found, wrong | taps)


def differing(found: Found) -> set[Site]:
    """Calls whose gradients differ."""
    return {mismatch.owner for error, mismatch in found if over(error, "gradient")}


def without_what_comes_of(traced: Traced, found: Found, wrong: set[Site]) -> Found:
    """Replace the gradients that these calls' code sends back to others by torch's."""
    made = {each.place for each in traced.isolated.mismatches if each.owner in wrong and each.place}
    if not made or differing(found) <= wrong:
        return found
    sent = traced.sent_from(made)
    reached = {mismatch.place for mismatch in sent.gradient_mismatches if mismatch.jax.any()}
    corrected = with_torchs(traced, made, own_gradients(traced, sent.weights))
    kept = [each for each in found if each[1].owner in wrong or each[1].place not in (None, *reached)]
    return kept + [each for each in weight_gradients(traced, corrected) if each[1].owner not in wrong]


def with_torchs(traced: Traced, made: set[ArrayKey], sent: Arrays) -> Arrays:
    """jax's gradients of weights, with torch's contribution from these places in place of jax's, which is `sent`.

    If torch is not available, torch's own gradients are used for the weights that something was sent to.
    """
    ours = own_gradients(traced, traced.isolated.weights)
    places = {place._replace(site=traced.pairs[place.site]) for place in made}
    torchs = gradients_from(traced.reference, places, traced.boundaries)
    if torchs is None:
        whole = in_layers(traced, traced.reference.gradients)
        return {name: whole[name] if array.any() else ours[name] for name, array in sent.items()}
    instead = in_layers(traced, torchs)
    return {name: ours[name] - array + instead[name] for name, array in sent.items()}
