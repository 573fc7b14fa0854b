"""Attention's scores and weights, where both sides show them: torch's softmaxes, and what the JAX model taps.

Rows of weights without any key are left out, since models give them zeros, NaN or means of everything; of scores, so are those
of masked keys. There jax's own values stay.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.parity.capture.attention_calls import is_attention
from jaxformer.parity.capture.call_records import Trace
from jaxformer.parity.capture.call_sites import ATTENTION, Site
from jaxformer.parity.capture.module_paths import ancestors, below, last
from jaxformer.parity.numerics.axis_order import orders_for


def pair_attention(ours: Mapping[Site, Sequence[np.ndarray]], theirs: Trace, parameters: Mapping[str, str]) -> dict[Site, Site]:
    """jax's taps -> torch's scores and weights of their shape, where the modules around both, and no others, share parameters.

    `ours` has what each tap gives. Where one side has more of them than the other, nothing is compared.
    """
    taps = [site for site in ours if last(site.path) in ATTENTION]
    shown = [site for site, record in theirs.items() if is_attention(site, record)]
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
    held = (frozenset(theirs for name, theirs in parameters.items() if below(name, module)) for module in ancestors(path))
    return next(filter(None, held), frozenset())
