"""Pairing of tapped values with what torch, or a JAX reference, has there: of attention's scores and weights by the parameters
around them, of others by their names."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.parity.numerics.axis_order import orders_for
from jaxformer.parity.numerics.metrics import error, over
from jaxformer.parity.pairing.modules import Calls, fit
from jaxformer.parity.trace.call_records import Trace, is_attention
from jaxformer.parity.trace.call_sites import ATTENTION, CALL, Site, ancestors, below, last


def pair_taps(jax: Calls, torch: Trace, paired: Mapping[str, str]) -> dict[str, str]:
    """Pair values that a tap of one path shows on both sides, though no parameter has that name.

    A name may mean two places: only where the outputs of the models differ are they paired.
    """
    if _equal(jax[CALL], torch[CALL].output):
        return {}
    taps = (site for site, record in torch.items() if not record.inputs and not is_attention(site, record))
    free = (site for site in taps if site in jax and site.path not in {*paired, *paired.values(), CALL.path})
    return {site.path: site.path for site in free if fit(jax[site], torch[site].output)}


def _equal(jax: Sequence[np.ndarray], torch: Sequence[np.ndarray]) -> bool:
    """True if there are equally many arrays, and they agree in their shapes and values."""
    both = [*zip(jax, torch, strict=False)]
    alike = len(jax) == len(torch) and all(j.shape == t.shape for j, t in both)
    return alike and not any(over(error(j, t), "activation") for j, t in both)


def pair_attention(jax: Mapping[Site, Sequence[np.ndarray]], torch: Trace, parameters: Mapping[str, str]) -> dict[Site, Site]:
    """Map jax's taps to torch's attention scores and weights of the same shape.

    The modules around both must share parameters, and no other modules these. `jax` has the outputs of each tap. If the two
    sides have different numbers of them, none is paired.
    """
    taps = [site for site in jax if last(site.path) in ATTENTION]
    shown = [site for site, record in torch.items() if is_attention(site, record)]
    own = {site.path: around(site.path, parameters) for site in taps}
    other = {site.path: around(site.path, {name: name for name in parameters.values()}) for site in shown}
    found = {
        site: [
            each
            for each in shown
            if last(site.path) == last(each.path)
            and own[site.path] & other[each.path]
            and orders_for(torch[each].output[0].shape, jax[site][0].shape)
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
    """torch's names of the tensors in the innermost module around `path` that has any."""
    held = (frozenset(torch for name, torch in parameters.items() if below(name, module)) for module in ancestors(path))
    return next(filter(None, held), frozenset())
