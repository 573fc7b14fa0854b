"""Attention's scores and weights among the recorded calls, and which of their entries are compared."""

import numpy as np

from jaxformer.parity.capture.call_records import Record, Trace
from jaxformer.parity.capture.call_sites import ATTENTION, Site
from jaxformer.parity.capture.module_paths import join, last, parent
from jaxformer.parity.numerics.axis_order import order_of, to_torch_axes
from jaxformer.parity.numerics.float_masks import MASKED

TINY = float(np.finfo(np.float32).tiny)
"""A larger weight does not underflow, not even in float32."""


def is_attention(site: Site, record: Record) -> bool:
    """Whether a call of torch's is not a module, but attention scores or weights."""
    return last(site.path) in ATTENTION and not record.inputs


def valid_entries(site: Site, theirs: Trace, ours: np.ndarray) -> np.ndarray:
    """Which entries of torch's scores or weights are compared; `ours` are jax's along the normal run.

    Scores are not compared where on each side the weight of the key underflows, whatever number masks it.
    """
    scores = theirs[scores_of(site)].output[0]
    keys = scores > MASKED
    if last(site.path) != ATTENTION[0]:
        return np.broadcast_to(keys.any(-1, keepdims=True), keys.shape)
    order = order_of(scores, ours, valid=keys)
    if order is None:
        return keys
    return keys & ~(without_weight(scores) & without_weight(to_torch_axes(ours, order, scores.shape)))


def without_weight(scores: np.ndarray) -> np.ndarray:
    """Where the weight underflows, in float32 at least."""
    return scores < scores.max(-1, keepdims=True) + np.log(TINY)


def scores_of(site: Site) -> Site:
    """The scores beside a call that is scores or weights."""
    return Site(join(parent(site.path), ATTENTION[0]), site.call)
