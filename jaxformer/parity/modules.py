"""The table of modules: how far each one is off, which are guilty, and why."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.convert.rules import Family, summed, to_jax, to_torch
from jaxformer.errors import ParityError
from jaxformer.parity.causes import Hints, explain, explain_gradient, explain_sum
from jaxformer.parity.evidence import evidence
from jaxformer.parity.float64 import jax_float64
from jaxformer.parity.inputs import cast, widen
from jaxformer.parity.isolate import Gap, Isolated, isolate
from jaxformer.parity.loading import ready
from jaxformer.parity.measure import LINES, NULL_GRADIENT, Kind, difference
from jaxformer.parity.pairing import below, layer_arrays, pair_calls, pair_modules, parameter_pairs
from jaxformer.parity.propagate import Run, propagate
from jaxformer.parity.records import Record, Trace, aligned
from jaxformer.parity.reference import Call, Reference, saying
from jaxformer.parity.report import Error, Module
from jaxformer.parity.seen import counted, explain_seen, last, pair_seen, scores_of
from jaxformer.parity.watch import CALL, Site

EQUAL = Error(0.0, 0.0)
Worst = dict[Site, tuple[Error, Gap]]


@dataclass(frozen=True)
class Traced:
    """Both sides' calls, and which of ours is which of torch's."""

    reference: Reference
    model: Any
    """The JAX model with torch's weights, in float32."""
    rules: Family
    ours: Run
    pairs: Mapping[Site, Site]
    """Ours -> torch's."""
    isolated: Isolated
    counted: Mapping[Site, np.ndarray] = field(default_factory=dict)
    """Of our taps that are attention's scores or weights: which entries of torch's count."""
    hints: Hints = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[str, np.ndarray]:
        """Ours in float64, layer by layer."""
        return layer_arrays(self.model, self.rules)


def trace(reference: Reference, model: Any, call: Call, rules: Family, *, local: bool, gradients: bool) -> Traced:
    """Run the JAX model in float64: along its normal run, and module by module on torch's arrays; if only the normal run is
    asked for, the second is left out where that is equal."""
    with jax_float64(), saying("jax in float64"):
        wide = ready(widen(model), training=False)
        inputs = tuple(cast(list(map(jnp.asarray, reference.inputs)), jnp.float64))
        ours = propagate(wide, call, inputs, reference.cotangent if gradients else None)
        own, other = ({site.path for site in sites} for sites in (ours.outputs, reference.calls))
        parameters = parameter_pairs(model, rules)
        pairs = pair_calls(ours.outputs, reference.calls, pair_modules(own, other, parameters))
        seen = pair_seen({site: ours.outputs[site] for site in ours.outputs if site not in pairs}, reference.calls, parameters)
        counts = {site: counted(other, reference.calls) for site, other in seen.items()}
        reference = replace(reference, calls=without_uneven_gradients(reference.calls, ours.outputs, pairs))
        pairs = {**pairs, **seen, CALL: CALL}
        isolated = Isolated([], [], None)
        if local or gradients or any(over(propagated(ours, reference, pair, counts), "activation") for pair in pairs.items()):
            isolated = isolate(wide, call, inputs, reference.calls, pairs, gradients=gradients, counted=counts)
    return Traced(reference, model, rules, ours, pairs, isolated, counts)


def propagated(ours: Run, reference: Reference, pair: tuple[Site, Site], counts: Mapping[Site, np.ndarray]) -> Error:
    """The largest difference of what a call gives along the normal run."""
    outputs = zip(ours.outputs[pair[0]], reference.calls[pair[1]].output, strict=False)
    both = [(j, aligned(t, j.shape)) for j, t in outputs]
    if pair[0] in counts:
        both = [tuple(np.where(aligned(counts[pair[0]], j.shape), side, 0) for side in (j, t)) for j, t in both]
    errors = [error(j, t) for j, t in both]
    return max(errors, key=lambda found: found.relative, default=EQUAL)


def without_uneven_gradients(theirs: Trace, ours: Iterable[Site], pairs: Mapping[Site, Site]) -> Trace:
    """A module that one side calls more often does its work in other portions: what comes back to a call is not the same."""
    counts = [Counter(site.path for site in sites) for sites in (ours, theirs)]
    uneven = {other for site, other in pairs.items() if counts[0][site.path] != counts[1][other.path]}
    return {
        site: replace(record, input_gradients=(), output_gradients=()) if site in uneven else record
        for site, record in theirs.items()
    }


def table(traced: Traced) -> list[Module]:
    """One row for each call that both sides have, in torch's call order."""
    theirs = traced.reference.calls
    order, noise = {site: i for i, site in enumerate(theirs)}, noise_of(theirs)
    forwards, backwards = worst_values(traced), worst_gradients(traced, noise)
    paths = {site.path for site in traced.pairs}
    behind = {holder(site.path, paths) for site in traced.counted if over(forwards.get(site, (EQUAL, None))[0], "activation")}
    rows = []
    for site in sorted(traced.pairs, key=lambda site: order[traced.pairs[site]]):
        record, ours = theirs[traced.pairs[site]], traced.ours.outputs[site]
        local, gap = forwards.get(site, (EQUAL, None))
        back, sent = backwards.get(site, (None, None))
        forward = over(local, "activation")
        backward = back is not None and over(back, "gradient") and site.path not in behind
        along = propagated(traced.ours, traced.reference, (site, traced.pairs[site]), traced.counted)
        blamed, cause = gap, why(traced, gap) if forward and gap else ""
        if backward and not forward and sent:
            blamed, cause = sent, explain_gradient(sent.ours, sent.theirs)
        spread = (over(along, "activation") and site not in traced.counted) or not site.path
        rows.append(
            Module(
                jax=str(site) if site.path or site.call else "",
                torch=str(traced.pairs[site]),
                propagated=along,
                local=local,
                what=blamed.what if blamed else "",
                guilty=forward or backward,
                cause=cause,
                gradient=returned(traced.ours.gradients.get(site), record, noise),
                local_gradient=back,
                heads=by_head(traced, site),
                positions=by_position(ours[0], record.output[0]) if spread else [],
            )
        )
    return rows


def holder(path: str, paths: Container[str]) -> str:
    """The innermost module around a tap: in what that one sends back, a wrong tap shows too."""
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            return path
    return CALL.path


def worst_values(traced: Traced) -> Worst:
    """The largest difference that each module's own code makes."""
    worst: Worst = {}
    for gap in traced.isolated.gaps:
        found = error(gap.ours, gap.theirs)
        if gap.owner not in worst or found.relative > worst[gap.owner][0].relative:
            worst[gap.owner] = found, gap
    return worst


def worst_gradients(traced: Traced, noise: float) -> Worst:
    """The same on the way back: gradients of what comes in, of what children gave, and of its own weights."""
    worst: Worst = {}
    found = [(error(gap.ours, gap.theirs, noise), gap) for gap in traced.isolated.gradient_gaps]
    for one, gap in found + weight_gradients(traced):
        if gap.owner not in worst or one.peak > worst[gap.owner][0].peak:
            worst[gap.owner] = one, gap
    return worst


def weight_gradients(traced: Traced) -> list[tuple[Error, Gap]]:
    """Of every weight, from the code of the module that has it."""
    if traced.isolated.weights is None:
        return []
    reference = {name: traced.reference.gradients[name] for name in traced.reference.weights}
    noise = NULL_GRADIENT * rms(reference.values())
    own = traced.isolated.weights
    with jax.enable_x64(True):
        theirs = layer_arrays(to_jax(reference, widen(traced.model), traced.rules), traced.rules)
        if traced.rules.tied:
            own = to_jax(summed(to_torch(own, traced.rules), traced.rules), own, traced.rules)
    ours, sites = layer_arrays(own, traced.rules), sorted(traced.pairs, key=lambda site: len(site.path))
    gaps = []
    for name, array in theirs.items():
        owner = [site for site in sites if site != CALL and site.call == 0 and below(name, site.path)][-1:] or [CALL]
        gap = Gap(owner[0], None, f"gradient of {name}", ours[name], array)
        gaps.append((error(gap.ours, gap.theirs, noise), gap))
    return gaps


def why(traced: Traced, gap: Gap) -> str:
    """The cause, where there is a plain one."""
    if gap.ours.dtype != gap.theirs.dtype and np.issubdtype(gap.theirs.dtype, np.floating):
        return f"jax gives {gap.ours.dtype} in a {gap.theirs.dtype} run: something casts"
    if gap.owner in traced.counted:
        scores = traced.reference.calls[scores_of(traced.pairs[gap.owner])].output[0]
        forced = scores_of(gap.owner) in traced.counted
        return explain_seen(gap.ours, gap.theirs, last(gap.owner.path), aligned(scores, gap.ours.shape), forced=forced)
    found = evidence(gap, traced.reference.calls, traced.pairs, traced.parameters)
    made = {name: array for name, array in found.before.items() if not np.array_equal(array, gap.theirs)}
    cause = explain(replace(found, before=made), gap.ours, gap.theirs, traced.hints)
    return cause or explain_sum(found, gap.ours, gap.theirs)  # torch may have handed an array on as it was


def returned(ours: list[np.ndarray] | None, record: Record, noise: float) -> Error | None:
    """The largest difference of the gradients that come back to what a call gives; None where torch has none."""
    floats = [array for array, given in zip(record.output_gradients, record.output, strict=False) if given.dtype.kind == "f"]
    pairs = [(j, t) for j, t in zip(ours or [], floats, strict=False) if t is not None]
    return max((error(j, aligned(t, j.shape), noise) for j, t in pairs), key=lambda found: found.peak, default=None)


def by_head(traced: Traced, site: Site) -> list[float]:
    """relL2 of what each head gathers: of the array `B T D` that an attention module hands to its last child; of its scores
    and weights `B N T S`, their own."""
    if site in traced.counted:
        gaps = [gap for gap in traced.isolated.gaps if gap.owner == site and gap.theirs.ndim == 4]
        return [error(gap.ours[:, n], gap.theirs[:, n]).relative for gap in gaps for n in range(gap.theirs.shape[1])]
    n = traced.reference.heads.get(traced.pairs[site].path, 0)
    handed = [gap for gap in traced.isolated.gaps if gap.owner == site and gap.child is not None and gap.theirs.ndim == 3]
    if not n or not handed or handed[-1].theirs.shape[-1] % n:
        return []
    ours, theirs = (array.reshape(*array.shape[:2], n, -1) for array in (handed[-1].ours, handed[-1].theirs))
    return [error(ours[:, :, head], theirs[:, :, head]).relative for head in range(n)]


def by_position(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """relL2 along axis 1, where both have one in the middle."""
    if ours.shape != theirs.shape or ours.ndim < 3:
        return []
    return [error(ours[:, t], theirs[:, t]).relative for t in range(ours.shape[1])]


def error(ours: np.ndarray, theirs: np.ndarray, noise: float = 0.0) -> Error:
    """Infinite where shapes, NaN or infinities do not agree; nothing where both sides are no more than noise."""
    if noise and np.abs(ours).max(initial=0.0) <= noise and np.abs(theirs).max(initial=0.0) <= noise:
        return EQUAL
    try:
        found = difference("", ours, theirs)
    except ParityError:
        return Error(float("inf"), float("inf"))
    return Error(found.relative, found.peak)


def over(found: Error, kind: Kind) -> bool:
    """Whether it is over tier A's line."""
    relative, peak = LINES[kind]
    return not (found.relative <= relative and found.peak <= peak)


def noise_of(calls: Mapping[Site, Record]) -> float:
    """Gradients of activations below this are null."""
    return NULL_GRADIENT * rms(array for record in calls.values() for array in record.output_gradients if array is not None)


def rms(arrays: Iterable[np.ndarray]) -> float:
    """Of all entries together."""
    total, count = 0.0, 0
    for array in arrays:
        total, count = total + float(np.square(array).sum()), count + array.size
    return float(np.sqrt(total / count)) if count else 0.0
