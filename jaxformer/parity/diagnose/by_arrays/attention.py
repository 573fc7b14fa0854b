"""Explain attention scores and weights that differ: a factor, other keys, rows in which every key is masked."""

from collections.abc import Iterator

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import factor_between
from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import SCORES, Difference
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.report.text import count
from jaxformer.parity.trace.call_records import TINY

SCALED = Change("scores.scaled", "jax multiplies torch's scores by {by:.6g}", torch="")
OTHER_KEYS = Change("scores.keys", "jax attends to {keys}", torch="")
SOFTMAX = Change("scores.softmax", "jax takes the softmax of torch's scores times {by:.6g}", torch="")


def explain_attention(difference: Difference) -> Candidate | None:
    """Explain finite scores or weights by a factor or by other masked keys, with the help of torch's scores."""
    arrays = difference.jax, difference.torch
    if difference.evidence.scores[-1].shape != arrays[1].shape or not all(np.isfinite(array).all() for array in arrays):
        return None
    if difference.kind == SCORES:
        factor, residual = factor_between(*arrays)  # both sides are 0 where no entry is valid
        return plain(SCALED, residual, by=factor) if residual <= EXPLAINED else None
    return explain_masked_keys(difference) or explain_weights(difference)


def explain_masked_keys(difference: Difference) -> Candidate | None:
    """Explain weights by keys that only one side masks.

    A weight of 0 is a masked key for certain only if jax computed its weights from torch's scores; otherwise it may be
    underflow, and is ignored.
    """
    jax, torch, masked = difference.jax, difference.torch, difference.evidence.scores[-1] <= MASKED
    more = int(((jax != 0) & masked).sum())
    fewer = int(((jax == 0) & (torch > TINY) & ~masked).sum()) if difference.forced else 0
    counted = [f"{count(n, 'key')} {how}" for n, how in ((more, "that torch masks"), (fewer, "fewer than torch")) if n]
    return plain(OTHER_KEYS, keys=" and ".join(counted)) if counted else None


def explain_weights(difference: Difference) -> Candidate | None:
    """Explain weights as the softmax of a multiple of torch's scores."""
    jax, scores = difference.jax, difference.evidence.scores[-1]
    keys = scores > MASKED
    some = keys & (jax > 0)
    logs = np.log(jax, where=some, out=np.zeros_like(jax)), np.where(some, scores, 0.0)
    count = np.maximum(some.sum(-1, keepdims=True), 1)
    jax_logs, torch_logs = (np.where(some, array - array.sum(-1, keepdims=True) / count, 0.0) for array in logs)
    factor, _ = factor_between(jax_logs, torch_logs)
    scaled = np.where(keys, factor * np.where(keys, scores, 0.0), -np.inf)
    highest = scaled.max(-1, keepdims=True)
    exp_scores = np.exp(scaled - np.where(np.isfinite(highest), highest, 0.0))
    total = exp_scores.sum(-1, keepdims=True)
    residual = distance(jax, exp_scores / np.where(total > 0, total, 1.0))
    return plain(SOFTMAX, residual, by=factor) if residual <= EXPLAINED else None


OTHERS = "gives other numbers"
EMPTY = Change("empty_rows.given", "torch {torch}, jax {jax}", torch="")


def explain_empty_rows(difference: Difference) -> Candidate | None:
    """Explain a difference that is only in rows where every key is masked, by what both sides give there.

    The rows are those of torch's last scores. Rows of its masks, in either sense, count too if one side gives 0 or NaN there:
    code that avoids NaN may hide such a row in the scores.
    """
    jax, torch, scores = difference.jax, difference.torch, difference.evidence.scores[-1:]
    masked = [each <= MASKED for each in scores] + [sense for mask in difference.evidence.masks for sense in (~mask, mask)]
    for i, keys in enumerate(masked):
        for empty in rows_beside(np.asarray(keys.all(-1)), jax.shape[:-1]):
            if empty.any() and not empty.all() and distance(jax[~empty], torch[~empty]) <= EXPLAINED:
                torch_gives, jax_gives = in_words(torch[empty]), in_words(jax[empty])
                by_scores = i < len(scores)
                if by_scores or {torch_gives, jax_gives} != {OTHERS}:
                    alike = torch_gives == OTHERS and any(map(alike_where_empty, scores))
                    return plain(EMPTY, torch="attends to all keys alike" if alike else torch_gives, jax=jax_gives)
    return None


def alike_where_empty(scores: np.ndarray) -> bool:
    """True if all keys of each fully masked row have the same finite score, so that torch gives the mean of all values."""
    empty = (scores <= MASKED).all(-1, keepdims=True)
    return bool(np.isfinite(scores).all() and not np.ptp(np.where(empty, scores, 0), -1).any())


def rows_beside(empty: np.ndarray, lead: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Broadcast rows `B N T`, `B*N T`, `B T` or `T` to an array that begins `B T`, `B T N`, `B N T` or `T`.

    Where the array has no axis of heads, a row counts if it is masked for any head.
    """
    forms = [empty]
    if empty.ndim == 3:
        forms += [empty.swapaxes(1, 2), empty.any(1)]
    if empty.ndim == 2:
        forms += [empty[:, :, None], empty[:, None]]
        forms += [empty.reshape(lead[0], -1, empty.shape[1]).any(1)] if lead and lead[0] and len(empty) % lead[0] == 0 else []
    for form in forms:
        if form.ndim == len(lead) and all(one in (1, many) for one, many in zip(form.shape, lead, strict=True)):
            yield np.broadcast_to(form, lead)


def in_words(rows: np.ndarray) -> str:
    """Describe the rows of one side: NaN, 0, or other numbers."""
    if np.isnan(rows).all():
        return "gives NaN"
    return OTHERS if rows.any() else "gives 0"
