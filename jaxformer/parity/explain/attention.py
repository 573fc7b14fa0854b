"""Why attention's scores or weights differ."""

import numpy as np

from jaxformer.parity.capture.attention_calls import TINY
from jaxformer.parity.capture.call_sites import ATTENTION
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.numerics.metrics import distance
from jaxformer.parity.run.pair_attention import EXPLAINED


def explain_attention(ours: np.ndarray, theirs: np.ndarray, what: str, scores: np.ndarray, *, forced: bool) -> str:
    """What is plain about scores or weights that differ: a factor, or other masked keys; zeros stand where nothing counts.

    `scores` are torch's. `forced` if our weights were made of these: then they are 0 elsewhere only where we mask. Else that
    may be underflow, and nothing is said of it.
    """
    arrays = ours, theirs, scores
    if len({array.shape for array in arrays}) > 1 or not theirs.size or any(array.dtype.kind != "f" for array in arrays):
        return ""
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return ""
    if what == ATTENTION[0]:
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
