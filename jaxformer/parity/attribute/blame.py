"""Blame: whether a module whose own code differs counts as diverging, or only follows from differences elsewhere.

Values that a module forwards from a call inside, and gradients sent back through code with wrong values, are consequences. Rows
of padding that differ are only a note. The inputs of a tap are not seen: the code before the first tap, such as a residual
stream's, also feeds all later ones. A tap that differs after another one of the same code may be right, so it is only blamed
for a cause known to be its own."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.attribute.between_modules import with_code_between
from jaxformer.parity.attribute.notes import drawn, unset, unsteady
from jaxformer.parity.attribute.other_shapes import code_of, with_other_shapes
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis, sentence
from jaxformer.parity.diagnose.explainers import cause_of_all, looks_of, mesh_cause, served_by
from jaxformer.parity.diagnose.mutation import Mutation
from jaxformer.parity.numerics.axis_order import added_up, aligned, repeated
from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.numerics.metrics import EXACT, NULL_GRADIENT, Error, Noise, check_gradients, error, over, rms
from jaxformer.parity.report.data import Module
from jaxformer.parity.runs.gradients_of_weights import Arrays, gradients_from, in_layers, own_gradients, weight_gradients
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_records import Record
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, below
from jaxformer.parity.trace.reference import Reference


def resolved(traced: Traced, rows: list[Module]) -> list[Module]:
    """Return the table's rows with `diverging` only where a difference changes a result."""
    pairs = zip(traced.normal_run.outputs[CALL], traced.reference.calls[CALL].output, strict=True)
    if any(jax.shape != torch.shape for jax, torch in pairs) or any(over(row.propagated, "activation") for row in rows):
        return with_other_shapes(traced, rows)
    if wrong_gradients(traced)[1]:
        return with_code_between(traced, rows)
    if len(traced.reference.outputs) > 1 and traced.normal_run.weights is not None:  # each sends back a part of the sum
        rows = [replace(row, gradient=None, local_gradient=None) for row in rows]
    if any(row.gradient is not None and over(row.gradient, "gradient") for row in rows):
        return rows
    return [replace(row, diverging=False, shared=row.shared or row.diverging) for row in rows]


def wrong_gradients(traced: Traced) -> tuple[list[str], str]:
    """Names of the null gradients of weights and inputs, and a message about the first other one that differs, or ''."""
    if traced.normal_run.weights is None:
        return [], ""
    try:
        return check_gradients(traced.gradients, traced.reference.gradients, roundings(traced)), ""
    except ParityError as error:
        return [], str(error)


def roundings(traced: Traced) -> Mapping[str, Noise]:
    """Perturbation of torch's gradients by rounding."""
    return {name: traced.reference.rounding.run.get(ArrayKey.gradient(name), EXACT) for name in traced.reference.gradients}


def with_trained_padding(traced: Traced) -> Traced:
    """Compare with the gradients that the rows of padding would have without `padding_idx`, if all of jax's then equal
    torch's."""
    if not traced.reference.padding or not wrong_gradients(traced)[1]:
        return traced
    rows, gradients = without_padding(traced.reference)
    instead = replace(traced, reference=replace(traced.reference, gradients=gradients), padding=rows)
    return traced if wrong_gradients(instead)[1] else instead


def without_padding(reference: Reference) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Rows that get no gradient when they are looked up, and all gradients as if they got it."""
    rows, gradients = dict[str, None](), {**reference.gradients}
    for site, record in reference.calls.items():
        name = f"{site.path}.weight".removeprefix(".")
        name = reference.tied.get(name, name)
        if site.path in reference.padding and name in gradients and (sent := record.output_gradients[0]) is not None:
            row, table = reference.padding[site.path], gradients[name].copy()
            table[row] += sent[record.inputs[0] == row].sum(0)
            rows[f"row {row} of {name}"], gradients[name] = None, table
    return tuple(rows), gradients


def note_on_padding(traced: Traced) -> str:
    """Note on trained rows of padding for the check of gradients; '' if there are none."""
    why = "which torch's padding_idx leaves as it is: a difference in training alone"
    return f"; jax trains {', '.join(traced.padding)}, {why}" if traced.padding else ""


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
            torch = is_mask or holds(traced.reference.calls[other].output, mismatch.torch)
            if torch and holds(traced.normal_run.outputs.get(site, ()), mismatch.jax):
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
    jax = own_gradients(traced, traced.isolated.weights)
    places = {place._replace(site=traced.pairs[place.site]) for place in made}
    torchs = gradients_from(traced.reference, places, traced.boundaries)
    if torchs is None:
        whole = in_layers(traced, traced.reference.gradients)
        return {name: whole[name] if array.any() else jax[name] for name, array in sent.items()}
    instead = in_layers(traced, torchs)
    return {name: jax[name] - array + instead[name] for name, array in sent.items()}


Wrong = list[tuple[Site, list[Mismatch]]]
"""Calls with the mismatches that their code makes, the first one first."""


class Blame:
    """Cause of each call whose values differ, in torch's order, and the earlier call that it may follow from."""

    def __init__(self, traced: Traced, wrong: Wrong):
        self.traced = traced
        self.causes: dict[Site, Diagnosis] = {}
        self.behind: dict[Site, Site] = {}
        self.looks: dict[Site, str] = {}
        """Descriptions of the differences without a cause."""
        self.found: dict[Site, Candidate] = {}
        """Mutations of torch's code that explain a call."""
        self.mismatches = {site: mismatches[0] for site, mismatches in wrong}
        traced.session.is_single = [len(mismatches) for _, mismatches in wrong] == [1]
        mesh = mesh_cause(traced) if wrong else Diagnosis()
        self.causes = dict.fromkeys((site for site, _ in wrong) if mesh else (), mesh)
        if not mesh:
            self._explain_each(wrong)
        if not all(self.causes.values()) and not mesh.tried and (late := mesh_cause(traced, anyway=True)):
            self.causes, self.behind = dict.fromkeys(self.causes, late), {}

    def _explain_each(self, wrong: Wrong) -> None:
        """Explain each call, and then what several taps share."""
        traced = self.traced
        codes = {site: code for site, _ in wrong if (code := shared_code(traced, site)) is not None}
        first: dict[Site, Site] = {}
        for site, mismatches in wrong:
            before = first.get(codes.get(site, site))
            self._explain(site, mismatches, near=before is not None and not self.causes[before])
            if before is not None and not self.causes[site]:
                self.behind[site] = before
            elif site in codes and not (self.causes[site] and self.is_own(site, codes[site])):
                first.setdefault(codes[site], site)
        for code in dict.fromkeys(codes.values()):
            self._take_what_serves_most([site for site, other in codes.items() if other == code])
        for site, (mismatch, *others) in wrong:
            child = mismatch.child if mismatch.torch.dtype.kind in "iu" and not others else None
            if child and not self.causes[site] and self.causes.get(child):  # each side counts rows in other code
                self.behind[site] = child

    def _explain(self, site: Site, mismatches: list[Mismatch], *, near: bool) -> None:
        """Search for the cause of a call's difference; an output that changes from run to run has no cause in torch's code."""
        cause = sentence(unset(self.traced, site))
        if not cause and not unsteady(self.traced):
            cause = cause_of_all(self.traced, mismatches, near=near)
        self.causes[site] = cause
        if cause.first and cause.first.owner:
            self.found[site] = cause.first
        if not cause:
            self.looks[site] = drawn(self.traced) or looks_of(self.traced, mismatches[0], cause)

    def is_own(self, site: Site, code: Site) -> bool:
        """True if the cause lies in code of the tap only, not in code that also feeds other taps."""
        return site not in self.found or self.found[site].owner not in (CALL, Site("", 0), self.traced.pairs[code])

    def _take_what_serves_most(self, sites: list[Site]) -> None:
        """Choose among mutations that each explain some taps: all taps that one mutation explains are one difference."""
        served: dict[tuple[Site | None, Mutation], dict[Site, Diagnosis]] = {}
        firsts = {of(found): found for site in sites if (found := self.found.get(site))}
        for key, found in firsts.items():
            own = {site: self.causes[site] for site in sites if site in self.found and of(self.found[site]) == key}
            others = (site for site in sites if site not in own)
            says = {site: served_by(self.traced, self.mismatches[site], found) for site in others}
            served[key] = own | {site: cause for site, cause in says.items() if cause}
        left = {*sites}
        for causes in sorted(served.values(), key=len, reverse=True):
            if not (served_here := [site for site in sites if site in causes and site in left]):
                continue
            first, *others = served_here
            self.causes |= {site: causes[site] for site in served_here}
            self.behind = {site: before for site, before in self.behind.items() if site != first}
            self.behind |= dict.fromkeys(others, first)
            self.looks.pop(first, None)
            left -= {*served_here}


def of(found: Candidate) -> tuple[Site | None, Mutation]:
    """Call whose code the candidate mutates, and the mutation."""
    return found.owner, found.mutation


def shared_code(traced: Traced, site: Site) -> Site | None:
    """Call whose code makes a tap's value and goes on to other taps; a call with taps inside is its own.

    None for other calls, and for a running statistic, which feeds nothing.
    """
    pairs, buffers = traced.pairs, traced.reference.buffers
    taps = [each for each in traced.normal_run.taps if each in pairs and each not in traced.valid]
    taps = [each for each in taps if pairs[each].path not in buffers]
    if site in taps:
        return code_of(traced, site)
    return site if site in {code_of(traced, each) for each in taps} else None


def gives_more(traced: Traced, site: Site) -> bool:
    """True if more arrays of jax's call than of torch's get gradients, for example because jax's call also pools.

    The gradients of the common arrays are then a part of torch's, and the modules inside show the whole.
    """
    if site not in traced.pairs:
        return False
    torch = floats_of(traced.reference.calls[traced.pairs[site]])
    return any(gradient.any() for gradient in traced.normal_run.gradients.get(site, [])[len(torch) :])


def floats_of(record: Record) -> list[tuple[int, np.ndarray | None]]:
    """Indices of a call's float outputs and the gradients that come back to them; empty outputs, which nothing reads, are left
    out."""
    given = enumerate(zip_longest(record.output, record.output_gradients))
    return [(i, gradient) for i, (array, gradient) in given if array is not None and array.size and array.dtype.kind == "f"]


def returned(traced: Traced, site: Site, noise: float) -> Error | None:
    """Largest difference of the gradients that come back to a call's outputs; None if torch has none."""
    if gives_more(traced, site):
        return None
    other, moved = traced.pairs[site], traced.reference.rounding.run
    floats = floats_of(traced.reference.calls[other])
    orders, found = traced.isolated.orders, []
    for jax, (i, torch) in zip(traced.normal_run.gradients.get(site, []), floats, strict=False):
        if torch is not None and ArrayKey(site, "output", i) not in traced.opened:
            laid_out = aligned(torch, jax, orders.get(ArrayKey(site, "output", i)))
            if jax.shape != laid_out.shape:
                if not repeated(jax, laid_out):
                    continue
                few = min(jax.shape, laid_out.shape, key=math.prod)
                jax, laid_out = added_up(jax, few), added_up(laid_out, few)
            found.append(error(jax, laid_out, noise, moved.get(ArrayKey(other, "output_gradients", i), EXACT)))
    return max(found, key=lambda each: each.off("gradient"), default=None)


def noise_of(calls: Mapping[Site, Record]) -> float:
    """Size below which gradients of activations count as null."""
    return NULL_GRADIENT * rms(array for record in calls.values() for array in record.output_gradients if array is not None)
