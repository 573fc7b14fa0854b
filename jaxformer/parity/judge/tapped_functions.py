"""Gradients that come back through tapped functions.

A tap shows what a function gives, and not what it is given. So what a wrong one sends back shows in weights of the code before
it, which is not to blame: there torch's is put in its place.
"""

from collections.abc import Iterable

from jaxformer.parity.capture.call_sites import ArrayKey, Site
from jaxformer.parity.judge.gradients_of_weights import Arrays, in_layers, own_gradients, weight_gradients
from jaxformer.parity.numerics.metrics import Error, over
from jaxformer.parity.record.partial_gradients import gradients_from
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced

Found = list[tuple[Error, Mismatch]]


def around_taps(traced: Traced, found: Found, wrong: set[Site]) -> Found:
    """Differences of gradients; those of code around wrong taps without what the tapped functions send back. `wrong` are the
    calls whose values differ; a function whose own weights get other gradients is wrong too."""
    differing = [mismatch for error, mismatch in found if over(error, "gradient")]
    taps = {site for site in traced.normal_run.taps if site in traced.pairs and site not in traced.valid}
    taps &= wrong | {mismatch.owner for mismatch in differing}
    if not taps or all(mismatch.owner in taps for mismatch in differing):
        return found
    numbers = ((site, range(len(traced.reference.calls[traced.pairs[site]].output))) for site in taps)
    sent = traced.sent_from({ArrayKey(site, "output", i) for site, those in numbers for i in those})
    reached = {mismatch.place for mismatch in sent.gradient_mismatches if mismatch.jax.any()}
    corrected = with_torchs(traced, taps, own_gradients(traced, sent.weights))
    kept = [each for each in found if each[1].owner in taps or each[1].place not in (None, *reached)]
    return kept + [each for each in weight_gradients(traced, paths_of(wrong), corrected) if each[1].owner not in taps]


def with_torchs(traced: Traced, taps: set[Site], sent: Arrays) -> Arrays:
    """jax's gradients of weights, with what torch's modules send back in place of what these taps `sent`; where torch is not at
    hand, torch's own, of those that something was sent to."""
    ours, pairs = own_gradients(traced, traced.isolated.weights), traced.pairs
    torchs = gradients_from(traced.reference, {(pairs[site], "output") for site in taps}, traced.borders)
    if torchs is None:
        whole = in_layers(traced, traced.reference.gradients)
        return {name: whole[name] if array.any() else ours[name] for name, array in sent.items()}
    instead = in_layers(traced, torchs)
    return {name: ours[name] - array + instead[name] for name, array in sent.items()}


def paths_of(sites: Iterable[Site]) -> set[str]:
    """Of their modules."""
    return {site.path for site in sites}
