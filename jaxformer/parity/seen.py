"""Attention's scores and weights, where both sides show them: torch's softmaxes, and what the JAX model taps.

Rows of weights without any key are left out, since models give them zeros, NaN or means of everything; of scores, so are those
of masked keys. What is left out stays ours.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.parity.axes import as_theirs, order_of, orders_for
from jaxformer.parity.float_masks import MASKED
from jaxformer.parity.measure import distance
from jaxformer.parity.pairing import below
from jaxformer.parity.records import Record, Trace
from jaxformer.parity.watch import SEEN, Site

TINY = float(np.finfo(np.float32).tiny)
"""A weight above does not underflow, in float32 neither."""
EXPLAINED = 1e-12
"""The largest relL2 at which a formula gives an array."""


def is_seen(site: Site, record: Record) -> bool:
    """Whether torch's call is no module's, but scores or weights."""
    return last(site.path) in SEEN and not record.inputs


def last(path: str) -> str:
    """Its last part."""
    return path.rpartition(".")[2]


def pair_seen(ours: Mapping[Site, Sequence[np.ndarray]], theirs: Trace, parameters: Mapping[str, str]) -> dict[Site, Site]:
    """Our taps -> torch's scores and weights of their shape, where the modules around both share parameters, and no others do.

    `ours` has what each tap gives. Where one side has more of them than the other, nothing is compared.
    """
    taps = [site for site in ours if last(site.path) in SEEN]
    shown = [site for site, record in theirs.items() if is_seen(site, record)]
    own = {site.path: around(site.path, parameters) for site in taps}
    other = {site.path: around(site.path, {name: name for name in parameters.values()}) for site in shown}
    found = {
        site: [
            each
            for each in shown
            if last(site.path) == last(each.path)
            and own[site.path] & other[each.path]
            and orders_for(theirs[each].output[0].shape, ours[site][0].shape)
        ]
        for site in taps
    }
    pairs = {}
    for path in own:
        mine = [site for site in taps if site.path == path]
        fits = [each for each in shown if any(each in found[site] for site in mine)]
        alone = not any(each in fits for site in taps if site.path != path for each in found[site])
        if alone and len({each.path for each in fits}) == 1 and len(fits) == len(mine):
            pairs |= {site: each for site, each in zip(mine, fits, strict=True) if each in found[site]}
    return pairs


def around(path: str, parameters: Mapping[str, str]) -> frozenset[str]:
    """torch's names of the tensors in the innermost module around a path that has some."""
    while path:
        path = path.rpartition(".")[0]
        if found := frozenset(theirs for name, theirs in parameters.items() if below(name, path)):
            return found
    return frozenset()


def counted(site: Site, theirs: Trace, ours: np.ndarray) -> np.ndarray:
    """Which entries of torch's scores or weights are compared, `ours` being what is tapped for them along the normal run.

    Where each side's own softmax gives a key nothing, with whatever number it masks, their scores are not.
    """
    scores = theirs[scores_of(site)].output[0]
    keys = scores > MASKED
    if last(site.path) != SEEN[0]:
        return np.broadcast_to(keys.any(-1, keepdims=True), keys.shape)
    order = order_of(scores, ours, counts=keys)
    return keys if order is None else keys & ~(without_weight(scores) & without_weight(as_theirs(ours, order, scores.shape)))


def without_weight(scores: np.ndarray) -> np.ndarray:
    """Where the weight underflows, in float32 at least."""
    return scores < scores.max(-1, keepdims=True) + np.log(TINY)


def scores_of(site: Site) -> Site:
    """The scores beside a call that is scores or weights."""
    return Site(f"{site.path.removesuffix(last(site.path))}{SEEN[0]}", site.call)


def explain_seen(ours: np.ndarray, theirs: np.ndarray, what: str, scores: np.ndarray, *, forced: bool) -> str:
    """What is plain about scores or weights that differ: a factor, or other masked keys; zeros stand where nothing counts.

    `scores` are torch's. `forced` if our weights were made of these: then they are 0 elsewhere only where we mask. Else that
    may be underflow, and nothing is said of it.
    """
    arrays = ours, theirs, scores
    if len({array.shape for array in arrays}) > 1 or not theirs.size or any(array.dtype.kind != "f" for array in arrays):
        return ""
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return ""
    if what == SEEN[0]:
        factor = float((ours * theirs).sum() / (np.square(theirs).sum() or 1.0))
        residual = distance(ours, factor * theirs)
        return f"jax's scores are {factor:.6g} times torch's (residual {residual:.0e})" if residual <= EXPLAINED else ""
    more = int(((ours != 0) & (scores <= MASKED)).sum())
    fewer = int(((ours == 0) & (theirs > TINY) & (scores > MASKED)).sum()) if forced else 0
    said = [f"{n} keys {how}" for n, how in ((more, "that torch masks"), (fewer, "fewer than torch")) if n]
    return f"jax attends to {' and '.join(said)}" if said else explain_factor(ours, scores)


def explain_factor(ours: np.ndarray, scores: np.ndarray) -> str:
    """Where our weights are the softmax of a multiple of torch's scores."""
    keys = scores > MASKED
    some = keys & (ours > 0)
    logs = np.log(ours, where=some, out=np.zeros_like(ours)), np.where(some, scores, 0.0)
    count = np.maximum(some.sum(-1, keepdims=True), 1)
    mine, other = (np.where(some, array - array.sum(-1, keepdims=True) / count, 0.0) for array in logs)
    factor = float((mine * other).sum() / (np.square(other).sum() or 1.0))
    scaled = np.where(keys, factor * np.where(keys, scores, 0.0), -np.inf)
    highest = scaled.max(-1, keepdims=True)
    powers = np.exp(scaled - np.where(np.isfinite(highest), highest, 0.0))
    total = powers.sum(-1, keepdims=True)
    residual = distance(ours, powers / np.where(total > 0, total, 1.0))
    says = f"jax's weights are the softmax of {factor:.6g} times torch's scores (residual {residual:.0e})"
    return says if residual <= EXPLAINED else ""
