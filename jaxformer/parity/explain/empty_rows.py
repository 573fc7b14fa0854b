"""Rows of attention in which every key is masked: some models give zeros there, others NaN, or the mean of all values."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxformer.parity.capture.attention_calls import is_attention
from jaxformer.parity.capture.call_records import Trace
from jaxformer.parity.capture.call_sites import ATTENTION, CALL, Site
from jaxformer.parity.capture.module_paths import below, last
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.numerics.metrics import distance
from jaxformer.parity.run.pair_attention import EXPLAINED

ONLY = "only in rows where every key is masked"
OTHERS = "gives other numbers"


def explain_empty_rows(ours: np.ndarray, theirs: np.ndarray, scores: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> str:
    """What both sides give there, if that is all that differs; '' elsewhere. `scores` are torch's that were made before, of
    which the last count; and so do its masks, whichever sense they have, if a side
    gives nothing there: what keeps a row from NaN may hide it in scores."""
    hidden, alike = [sense for mask in masks for sense in (~mask, mask)], False
    if scores:
        hidden.insert(0, scores[-1] <= MASKED)
        rows = hidden[0].all(-1, keepdims=True)
        alike = np.isfinite(scores[-1]).all() and not np.ptp(np.where(rows, scores[-1], 0), -1).any()
    for i, empty in (
        (i, rows) for i, keys in enumerate(hidden) for rows in laid_beside(np.asarray(keys.all(-1)), ours.shape[:-1])
    ):
        if empty.any() and not empty.all() and distance(ours[~empty], theirs[~empty]) <= EXPLAINED:
            both = given(theirs[empty]), given(ours[empty])
            if (scores and i == 0) or set(both) != {OTHERS}:
                return f"torch {'attends to all keys alike' if alike and both[0] == OTHERS else both[0]}, jax {both[1]}"
    return ""


def scores_before(until: Site, owner: Site, theirs: Trace) -> list[np.ndarray]:
    """Of the softmaxes that torch's `owner` ran before its call `until` was over."""
    before = list(theirs)[: list(theirs).index(until)]
    inside = [site for site in before if is_attention(site, theirs[site]) and (owner == CALL or below(site.path, owner.path))]
    return [theirs[site].output[0] for site in inside if last(site.path) == ATTENTION[0]]


def laid_beside(empty: np.ndarray, lead: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Rows `B N T`, `B*N T`, `B T` or `T` beside an array that begins `B T`, `B T N`, `B N T` or `T`; any head's count where it
    has all of them in one."""
    forms = [empty]
    if empty.ndim == 3:
        forms += [empty.swapaxes(1, 2), empty.any(1)]
    if empty.ndim == 2:
        forms += [empty[:, :, None], empty[:, None]]
        forms += [empty.reshape(lead[0], -1, empty.shape[1]).any(1)] if lead and lead[0] and len(empty) % lead[0] == 0 else []
    for form in forms:
        if form.ndim == len(lead) and all(one in (1, many) for one, many in zip(form.shape, lead, strict=True)):
            yield np.broadcast_to(form, lead)


def given(rows: np.ndarray) -> str:
    """What stands there, in words."""
    if np.isnan(rows).all():
        return "gives NaN"
    return OTHERS if rows.any() else "gives 0"
