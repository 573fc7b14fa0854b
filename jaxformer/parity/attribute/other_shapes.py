"""Calls whose output has another shape than torch's, on inputs of torch's shape: a convolution with other padding."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Diagnosis
from jaxformer.parity.diagnose.explainers import replay_cause_of
from jaxformer.parity.numerics.metrics import DIFFERENT, over
from jaxformer.parity.report.data import Cause, Module
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, ancestors

MOST_ORDERS = 4
"""Largest number of orders of the axes that are tried, where several fit: of a picture as wide as it has channels."""


def with_other_shapes(traced: Traced, rows: Sequence[Module]) -> list[Module]:
    """Mark calls whose output has another shape as diverging, if that is known to explain differences, or if a later difference
    has no cause.

    Otherwise the two sides divide the work differently. jax's array stays at such a call, so nothing is known of the code that
    uses it.
    """
    sites = {str(other): mine for mine, other in traced.pairs.items()}
    wrong = {sites[row.torch]: row.cause for row in rows if row.diverging and over(row.local, "activation")}
    said: dict[str, str] = {}
    causes: dict[str, list[Cause]] = {}
    left: set[str] = set()
    for site, sizes_differ in other_shapes(traced).items():
        behind = {each: cause for each, cause in wrong.items() if goes_on_with(traced, each, site)}
        why = shape_cause(traced, site) if sizes_differ and (behind or CALL in traced.unfit) else Diagnosis()
        if CALL in traced.unfit or (why and behind) or not all(behind.values()):
            causes[str(traced.pairs[site])] = why.causes()
            said[str(traced.pairs[site])] = f"{gives(traced, site)}{f': {why}' if why else ''}"
            left |= {str(traced.pairs[each]) for each, cause in behind.items() if sizes_differ and (why or not cause)}

    def judged(row: Module) -> Module:
        if row.torch in said:
            return replace(row, local=DIFFERENT, diverging=True, cause=said[row.torch], causes=causes[row.torch])
        return replace(row, diverging=False) if row.torch in left else row

    return [judged(row) for row in rows]


def gives(traced: Traced, site: Site) -> str:
    """Describe both shapes: 'gives [1, 31, 8] in jax, [1, 32, 8] in torch'."""
    jax, torch = outputs(traced, site)
    return f"gives {list(jax.shape)} in jax, {list(torch.shape)} in torch"


def outputs(traced: Traced, site: Site) -> tuple[np.ndarray, np.ndarray]:
    """Output of a call in the normal run, and torch's."""
    return traced.normal_run.outputs[site][0], traced.reference.calls[traced.pairs[site]].output[0]


def shape_cause(traced: Traced, site: Site) -> Diagnosis:
    """Cause of the other shape, if all earlier outputs are torch's, so that the call itself makes the difference."""
    order = [*traced.reference.calls]
    until = order.index(traced.pairs[site])
    before = (found for each, found in traced.normal.items() if order.index(traced.pairs[each]) < until)
    if any(found is None or over(found, "activation") for found in before):
        return Diagnosis()
    jax, torch = outputs(traced, site)
    alike = {to: sum(map(int.__eq__, np.transpose(torch, to).shape, jax.shape)) for to in permutations(range(torch.ndim))}
    most = max(alike.values())
    if torch.ndim != jax.ndim or most < min(torch.ndim - 1, 2):  # both axes of pictures may be longer
        return Diagnosis()
    orders = [np.argsort(to) for to, number in alike.items() if number == most][:MOST_ORDERS]
    places = (Mismatch(site, None, "output", np.transpose(jax, to), torch, ArrayKey(site, "output", 0)) for to in orders)
    return next(filter(None, (replay_cause_of(traced, place) for place in places)), Diagnosis())


def other_shapes(traced: Traced) -> dict[Site, bool]:
    """Find jax's innermost calls whose output has another shape than torch's; True if it also has another size.

    Their inputs are torch's: if torch is given a part, like each expert its tokens, the work is divided differently. Modules
    that are called more than once are left out, because it is uncertain which call corresponds to which.
    """
    calls, order = Counter(site.path for site in traced.reference.calls), [*traced.reference.calls]
    found = {}
    for site in sorted(traced.unfit - traced.valid.keys(), key=lambda site: order.index(traced.pairs[site])):
        if calls[traced.pairs[site].path] == 1 and is_given_torchs(traced, site):
            jax, torch = outputs(traced, site)
            found[site] = jax.size != torch.size
    inner = {path for site, sizes_differ in found.items() if sizes_differ for path in around(site)}
    return {site: differ for site, differ in found.items() if site.path not in inner}


def around(site: Site) -> list[str]:
    """Paths of the calls around a call."""
    return [] if site == CALL else [*ancestors(site.path), CALL.path]


def is_given_torchs(traced: Traced, site: Site) -> bool:
    """True if the largest input of a call is torch's.

    The input of a tap is not seen. There torch's input must have the size of an earlier array that fitted, and not of one that
    did not.
    """
    torch = traced.reference.calls[traced.pairs[site]].inputs
    if site in (CALL, Site("", 0)) or not torch:
        return True
    largest = max(range(len(torch)), key=lambda i: torch[i].size)
    if site not in traced.normal_run.taps:
        places = (mismatch.place for mismatch in traced.isolated.mismatches if mismatch.place)
        return any(place.site == site and place.part == "inputs" and place.number == largest for place in places)
    back, known = {other: mine for mine, other in traced.pairs.items()}, {array.size for array in traced.reference.inputs}
    for other, record in traced.reference.calls.items():
        if other == traced.pairs[site]:
            break
        sizes = {array.size for array in record.output} if other in back else set()
        known = known - sizes if back.get(other) in traced.unfit else known | sizes
    return torch[largest].size in known


def goes_on_with(traced: Traced, reader: Site, site: Site) -> bool:
    """True if the reader's code uses the output of `site`: it is the nearest call around, or a later one in the same code that
    is a tap too, or is not given torch's input; or no call between the two gives an array of torch's shape."""
    code = code_of(traced, site)
    if reader == code:
        return True
    order = {other: i for i, other in enumerate(traced.reference.calls)}
    first, last = (order[traced.pairs[each]] for each in (site, reader))
    own = reader not in traced.normal_run.taps and is_given_torchs(traced, reader)
    fit = (each for each in traced.pairs if each not in traced.unfit and each.path not in around(reader))
    within = code_of(traced, reader) == code or not any(first < order[traced.pairs[each]] < last for each in fit)
    return first < last and within and not own


def code_of(traced: Traced, site: Site) -> Site:
    """Call whose code makes a tap's value or calls a module: the innermost call around that is no tap and whose output is
    compared."""
    hidden = {*traced.normal_run.taps, *traced.unfit, *traced.valid}
    seen = {each.path: each for each in traced.pairs if each not in hidden and not each.call}
    return next((seen[path] for path in around(site) if path in seen), CALL)
