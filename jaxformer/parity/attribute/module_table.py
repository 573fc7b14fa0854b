"""Table of modules: the errors of each, whether it diverges, and why."""

from jaxformer.parity.attribute.blame import Blame, gives_more, is_handed_on, noise_of, returned, without_consequences
from jaxformer.parity.attribute.divided_work import one_scale
from jaxformer.parity.diagnose.by_arrays.norms import may_be_float32
from jaxformer.parity.diagnose.diagnosis import Diagnosis, sentence
from jaxformer.parity.diagnose.explainers import cause_of
from jaxformer.parity.diagnose.formulas.attention import split
from jaxformer.parity.numerics.axis_order import aligned
from jaxformer.parity.numerics.metrics import EQUAL, Error, error, over
from jaxformer.parity.pairing.modules import holder
from jaxformer.parity.report.data import Module
from jaxformer.parity.runs.gradients_of_weights import own_gradients, weight_gradients
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import ArrayKey, Site

Worst = dict[Site, tuple[Error, Mismatch]]


def table(traced: Traced) -> list[Module]:
    """Build one row for each call that both sides have, in torch's call order."""
    theirs = traced.reference.calls
    order, noise = {site: i for i, site in enumerate(theirs)}, noise_of(theirs)
    own, shared = own_values(traced)
    forwards = {site: found[0] for site, found in own.items()}
    wrong = {site for site, (found, _) in forwards.items() if over(found, "activation")}
    backwards = worst_gradients(traced, noise, wrong)
    paths = {site.path for site in traced.pairs}
    held = {holder(site.path, paths) for site in traced.valid if over(forwards.get(site, (EQUAL, None))[0], "activation")}
    ordered = sorted(traced.pairs, key=lambda site: order[traced.pairs[site]])
    differ = {site: differing(traced, own[site]) for site in ordered if site in wrong}
    scales = {**one_scale(differ), **traced.scales}
    known = {*scales, *(scale.behind for scale in scales.values())}
    blame = Blame(traced, [(site, mismatches) for site, mismatches in differ.items() if site not in known])
    blame.causes |= {scale.behind: sentence(scale.says) for scale in scales.values()}
    rows = []
    for site in ordered:
        local, mismatch = forwards.get(site, (EQUAL, None))
        back, sent = backwards.get(site, (None, None))
        forward, behind = over(local, "activation") and site not in scales, blame.behind.get(site)
        backward = back is not None and over(back, "gradient") and site.path not in held and site not in scales
        along = traced.normal[site] or EQUAL
        blamed, cause = mismatch, blame.causes.get(site, Diagnosis())
        explained = differ[site][0] if site in differ else mismatch
        if backward and not forward and sent:
            blamed, explained, cause = sent, sent, cause_of(traced, sent, gradient=True)
        spread = (over(along, "activation") and site not in traced.valid) or not site.path
        rows.append(
            Module(
                jax=str(site) if site.path or site.call else "",
                torch=str(traced.pairs[site]),
                propagated=along,
                local=local,
                what=blamed.what if blamed else "",
                diverging=(forward or backward) and behind is None,
                behind=str(behind or ""),
                shared=site in shared and not forward,
                cause=str(cause),
                causes=cause.causes(explained.what if explained else "output"),
                source=traced.normal_run.lines.get(site.path, ""),
                float32=bool(forward and mismatch and not cause and may_be_float32(traced, mismatch)),
                looks=blame.looks.get(site, ""),
                gradient=returned(traced, site, noise),
                local_gradient=back,
                heads=by_head(traced, site),
                positions=by_position(traced, site) if spread else [],
            )
        )
    return rows


def differing(traced: Traced, found: list[tuple[Error, Mismatch]]) -> list[Mismatch]:
    """Mismatches over their tolerance, in the order in which torch's code makes the arrays: the later ones may differ because
    of the first."""
    order = {site: i for i, site in enumerate(traced.reference.calls)}
    wrong = [mismatch for each, mismatch in found if over(each, "activation")]
    return sorted(wrong, key=lambda each: order[traced.pairs[each.place.site]] if each.place else len(order))


def own_values(traced: Traced) -> tuple[dict[Site, list[tuple[Error, Mismatch]]], set[Site]]:
    """Group mismatches by the call whose own code makes them, the largest first; and list calls that share work with others.

    A call that gives torch's arrays in the normal run, but not on torch's inputs, has a part of its work on the other side of a
    boundary. Values that a module only forwards are not its own either.
    """
    own: dict[Site, list[tuple[Error, Mismatch]]] = {}
    shared = set(traced.divided)
    wrong = {mismatch.owner for found, mismatch in traced.values if over(found, "activation")}
    for found, mismatch in traced.values:
        outcome = mismatch.place and traced.normal[mismatch.place.site]
        fine = outcome and not over(outcome, "activation")
        if over(found, "activation") and (fine or is_handed_on(traced, mismatch, wrong)):
            shared.add(mismatch.owner)
        else:
            own.setdefault(mismatch.owner, []).append((found, mismatch))
    return {site: sorted(found, key=lambda each: -each[0].off("activation")) for site, found in own.items()}, shared


def worst_gradients(traced: Traced, noise: float, wrong: set[Site]) -> Worst:
    """Worst gradient of each call: of its inputs, of its children's outputs, and of its own weights.

    `wrong` are the calls whose values differ.
    """
    worst: Worst = {}
    found = [
        (error(mismatch.jax, mismatch.torch, noise, traced.perturbed(mismatch)), mismatch)
        for mismatch in traced.isolated.gradient_mismatches
        if not gives_more(traced, mismatch.owner) and not (mismatch.child and gives_more(traced, mismatch.child))
    ]
    found += weight_gradients(traced, own_gradients(traced, traced.isolated.weights))
    for one, mismatch in without_consequences(traced, found, wrong):
        if mismatch.owner not in worst or one.off("gradient") > worst[mismatch.owner][0].off("gradient"):
            worst[mismatch.owner] = one, mismatch
    return worst


def by_head(traced: Traced, site: Site) -> list[float]:
    """relL2 of each head.

    For an attention module, in the array `B T D` that it hands to its last child; for scores and weights `B N T S`, in
    themselves.
    """
    own = [each for each in traced.isolated.mismatches if each.owner == site]
    if site in traced.valid:
        both = [(each.jax, each.torch) for each in own if each.torch.ndim == 4]
    else:
        n = traced.reference.heads.get(traced.pairs[site].path, 0)
        handed = [each for each in own if each.child is not None and each.torch.ndim == 3][-1:]
        whole = [each for each in handed if n and each.torch.shape[-1] % n == 0]
        both = [[split(array, n, interleaved=False) for array in (each.jax, each.torch)] for each in whole]
    return [error(ours[:, n], theirs[:, n]).relative for ours, theirs in both for n in range(theirs.shape[1])]


def by_position(traced: Traced, site: Site) -> list[float]:
    """relL2 along axis 1 of jax's output, if both sides have an axis between the first and the last."""
    ours, theirs = traced.normal_run.outputs[site][0], traced.reference.calls[traced.pairs[site]].output[0]
    theirs = aligned(theirs, ours, traced.isolated.orders.get(ArrayKey(site, "output", 0)))
    if ours.shape != theirs.shape or ours.ndim < 3:
        return []
    return [error(ours[:, t], theirs[:, t]).relative for t in range(ours.shape[1])]
