"""Rows of attention in which every key is masked: some models give zeros there, others NaN, or the mean of all values."""

from collections.abc import Iterator

import numpy as np

from jaxformer.parity.explain.evidence import Difference
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

ONLY = "only in rows where every key is masked"
OTHERS = "gives other numbers"


def explain_empty_rows(difference: Difference) -> str:
    """What both sides give there, if that is all that differs; '' elsewhere.

    The last of torch's scores count. Its masks do too, whichever sense they have, if a side gives nothing there: what keeps a
    row from NaN may hide it in scores.
    """
    ours, theirs, scores = difference.jax, difference.torch, difference.evidence.scores[-1:]
    masked = [each <= MASKED for each in scores] + [sense for mask in difference.evidence.masks for sense in (~mask, mask)]
    for i, keys in enumerate(masked):
        for empty in rows_beside(np.asarray(keys.all(-1)), ours.shape[:-1]):
            if empty.any() and not empty.all() and distance(ours[~empty], theirs[~empty]) <= EXPLAINED:
                torch_gives, jax_gives = in_words(theirs[empty]), in_words(ours[empty])
                by_scores = i < len(scores)
                if by_scores or {torch_gives, jax_gives} != {OTHERS}:
                    alike = torch_gives == OTHERS and any(map(alike_where_empty, scores))
                    return f"torch {'attends to all keys alike' if alike else torch_gives}, jax {jax_gives}"
    return ""


def alike_where_empty(scores: np.ndarray) -> bool:
    """Whether a row without keys has one finite score for all of them, so that torch gives the mean of all values."""
    empty = (scores <= MASKED).all(-1, keepdims=True)
    return bool(np.isfinite(scores).all() and not np.ptp(np.where(empty, scores, 0), -1).any())


def rows_beside(empty: np.ndarray, lead: tuple[int, ...]) -> Iterator[np.ndarray]:
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


def in_words(rows: np.ndarray) -> str:
    """What a side gives there."""
    if np.isnan(rows).all():
        return "gives NaN"
    return OTHERS if rows.any() else "gives 0"
