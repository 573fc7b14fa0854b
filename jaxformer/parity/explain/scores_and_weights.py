"""Why attention's scores or weights differ."""

import numpy as np

from jaxformer.parity.capture.attention_calls import TINY
from jaxformer.parity.explain.evidence import SCORES, Difference
from jaxformer.parity.explain.factor import factor_between
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.report.format import count


def explain_attention(difference: Difference) -> str:
    """Of finite arrays beside torch's scores: a factor, or other masked keys."""
    arrays = difference.jax, difference.torch
    if difference.evidence.scores[-1].shape != arrays[1].shape or not all(np.isfinite(array).all() for array in arrays):
        return ""
    if difference.kind == SCORES:
        return explain_scores(difference)
    return explain_masked_keys(difference) or explain_weights(difference)


def explain_scores(difference: Difference) -> str:
    """A factor between jax's scores and torch's; both are 0 where no entry is valid."""
    factor, residual = factor_between(difference.jax, difference.torch)
    return f"jax's scores are {factor:.6g} times torch's (residual {residual:.0e})" if residual <= EXPLAINED else ""


def explain_masked_keys(difference: Difference) -> str:
    """Where jax attends to other keys than torch.

    Weights that are 0 are masked for sure only where jax made them of torch's scores: elsewhere they may be underflow, and
    nothing is said of them.
    """
    ours, theirs, masked = difference.jax, difference.torch, difference.evidence.scores[-1] <= MASKED
    more = int(((ours != 0) & masked).sum())
    fewer = int(((ours == 0) & (theirs > TINY) & ~masked).sum()) if difference.forced else 0
    counted = [f"{count(n, 'key')} {how}" for n, how in ((more, "that torch masks"), (fewer, "fewer than torch")) if n]
    return f"jax attends to {' and '.join(counted)}" if counted else ""


def explain_weights(difference: Difference) -> str:
    """Where jax's weights are the softmax of a multiple of torch's scores."""
    ours, scores = difference.jax, difference.evidence.scores[-1]
    keys = scores > MASKED
    some = keys & (ours > 0)
    logs = np.log(ours, where=some, out=np.zeros_like(ours)), np.where(some, scores, 0.0)
    count = np.maximum(some.sum(-1, keepdims=True), 1)
    jax_logs, torch_logs = (np.where(some, array - array.sum(-1, keepdims=True) / count, 0.0) for array in logs)
    factor, _ = factor_between(jax_logs, torch_logs)
    scaled = np.where(keys, factor * np.where(keys, scores, 0.0), -np.inf)
    highest = scaled.max(-1, keepdims=True)
    exp_scores = np.exp(scaled - np.where(np.isfinite(highest), highest, 0.0))
    total = exp_scores.sum(-1, keepdims=True)
    residual = distance(ours, exp_scores / np.where(total > 0, total, 1.0))
    says = f"jax's weights are the softmax of {factor:.6g} times torch's scores (residual {residual:.0e})"
    return says if residual <= EXPLAINED else ""
