"""Attention weights, computed from scores in other ways than torch's."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.mutation import Free
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.trace.torch_hooks import fused_scores

POWERS = {"powers": 1, "powers_from_one": 0}
"""Number that the first head counts as in ALiBi's slopes 2^(-8 i / n), by the way of counting."""


class Scores(NamedTuple):
    """Scores before they are masked, what is added to them, and their mask."""

    plain: torch.Tensor
    added: torch.Tensor
    """Bias that is added to the scores; 0 where keys are hidden."""
    seen: torch.Tensor
    """Mask, True where a key is seen."""

    @property
    def total(self) -> torch.Tensor:
        """Scores plus their bias, with no key hidden."""
        return self.plain + self.added

    @property
    def masked(self) -> torch.Tensor:
        """Scores plus their bias, -inf where keys are hidden."""
        return self.total.masked_fill(~self.seen, -math.inf)


Weigh = Callable[[Scores], torch.Tensor]
"""weigh(scores) -> weights."""


def unmasked(scores: torch.Tensor) -> Scores:
    """Scores without a mask and a bias."""
    return Scores(scores, torch.zeros_like(scores), torch.ones_like(scores, dtype=torch.bool))


def under_mask(scores: torch.Tensor, mask: torch.Tensor) -> Scores:
    """Scores under an additive mask, which may hold a bias too."""
    scores, mask = torch.broadcast_tensors(scores, mask)
    return Scores(scores, mask.masked_fill(mask <= MASKED, 0.0), (mask > MASKED) & (scores > MASKED))


def masked_by(function: Any, args: Any, kwargs: Any) -> Scores:
    """Scores and mask of an operation that masks scores: `masked_fill`, `where`, `baddbmm` or a sum."""
    name = function.__name__.strip("_")
    if name == "masked_fill":
        return unmasked(args[0])._replace(seen=~args[1].expand_as(args[0]))
    if name == "where":
        seen, one, other = (*args, *kwargs.values())
        if seen.dtype != torch.bool:  # the method `x.where(condition, y)`
            seen, one = one, seen
        hides_other = bool((torch.as_tensor(other) <= MASKED).any())
        scores = one if hides_other else other
        return unmasked(scores)._replace(seen=(seen if hides_other else ~seen).expand_as(scores))
    mask, scores = (args[0], torch.bmm(*args[1:3])) if name == "baddbmm" else args[:2]
    hides = (scores <= MASKED).any() and not (mask <= MASKED).any()
    if hides or not scores[scores > MASKED].any():  # the second operand is the mask
        mask, scores = scores, mask
    return under_mask(scores, mask)


def masked_in_fused(function: Any, args: Any, kwargs: Any) -> Scores:
    """Scores and mask of torch's fused attention."""
    given = named(function, args, kwargs)
    mask, causal = given.pop("attn_mask", None), given.pop("is_causal", False)
    scores = fused_scores(**given)
    plain = unmasked(scores)
    if causal:
        return plain._replace(seen=plain.seen.tril())
    if mask is None:
        return plain
    return plain._replace(seen=mask.expand_as(scores)) if mask.dtype == torch.bool else under_mask(scores, mask)


def fused_attention(weigh: Weigh, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute torch's fused attention with other weights; a row without keys keeps torch's output."""
    scores = masked_in_fused(function, args, kwargs)
    v, weights = args[2], weigh(scores)
    y = weights @ v.repeat_interleave(weights.shape[-3] // v.shape[-3], -3)
    rows = scores.seen.any(-1, keepdim=True)
    return y if rows.all() else torch.where(rows, y, function(*args, **kwargs))


def softmax(scores: Scores, axis: int = -1) -> torch.Tensor:
    """Compute a softmax over an axis; where none of its entries is seen, all count alike."""
    return scores.masked.masked_fill(~scores.seen.any(axis, keepdim=True), 0.0).softmax(axis)


INSTEAD: dict[str, tuple[str, Weigh]] = {
    "masked_behind": ("masks after the softmax, not before it", lambda s: s.total.softmax(-1) * s.seen),
    "over_queries": ("takes the softmax over queries, not keys", partial(softmax, axis=-2)),
    "over_queries_nan": (
        "takes the softmax over queries, not keys: NaN for a key that none sees",
        lambda s: s.masked.softmax(-2),
    ),
    "over_heads": ("takes the softmax over heads, not keys", partial(softmax, axis=-3)),
    "over_rows": ("takes the softmax over the rows of the batch, not keys", partial(softmax, axis=0)),
    "sink": (
        "has a score of 0 beside the keys (a sink, `softmax_one`)",
        lambda s: torch.cat([s.masked, torch.zeros_like(s.masked[..., :1])], -1).softmax(-1)[..., :-1],
    ),
    "in_bfloat16": ("rounds the weights to bfloat16", lambda s: softmax(s).bfloat16().double()),
    "scores_in_bfloat16": (
        "rounds the scores to bfloat16",
        lambda s: softmax(s._replace(plain=s.plain.bfloat16().double(), added=s.added.bfloat16().double())),
    ),
    "sigmoid": ("has a sigmoid for the softmax", lambda s: torch.sigmoid(s.total) * s.seen),
    "relu": ("has a relu for the softmax", lambda s: torch.relu(s.total) * s.seen),
    "turned": (
        "adds the bias with queries and keys exchanged (transposed)",
        lambda s: softmax(s._replace(added=s.added.mT if s.added.shape[-1] == s.added.shape[-2] else s.added)),
    ),
}
"""Functions of the scores that give weights, with words."""
IN_SMALLER_TYPES = ("in_bfloat16", "scores_in_bfloat16")
CAPS = (50.0, 30.0, 20.0, 10.0, 5.0, 2.0)
"""Caps of scores at which the search for a soft cap begins."""
FILL = Free(-10.0, seeds=(-20.0, -10.0, -5.0, -2.0, -1.0))
BY_NUMBER: dict[str, tuple[str, Free, Callable[[Any, Scores], torch.Tensor]]] = {
    "scaled": (
        "multiplies the scores by {value} more",
        Free(1.0),
        lambda c, s: softmax(s._replace(plain=torch.where(s.seen, c * s.plain, s.plain))),
    ),
    "capped": (
        "caps the scores at {value}: c tanh(scores / c)",
        Free(50.0, seeds=CAPS),
        lambda c, s: softmax(s._replace(plain=c * torch.tanh(s.plain / c))),
    ),
    "filled": ("sets masked scores to {value}, not -inf", FILL, lambda c, s: torch.where(s.seen, s.total, c).softmax(-1)),
    "lowered": (
        "adds {value} to masked scores, not -inf",
        FILL,
        lambda c, s: torch.where(s.seen, s.total, s.plain + c).softmax(-1),
    ),
    "added": (
        "multiplies what is added to the scores (the bias) by {value}",
        Free(1.0),
        lambda c, s: softmax(s._replace(added=c * s.added)),
    ),
}
"""Functions of a number and the scores that give weights, with words and the number that is solved for. The number may be one
for each head where it is a factor."""


def slopes_instead(added: Any) -> Iterator[tuple[str, dict[str, Any], torch.Tensor]]:
    """Factors `N 1 1` that give other slopes to an array whose heads are multiples of one array, as ALiBi's bias.

    Each comes with a key and arguments of the words. None are given for other arrays.
    """
    heads = added.shape[-3] if isinstance(added, torch.Tensor) and added.ndim > 2 else 1
    if heads < 2 or added.dtype == torch.bool:
        return
    many = added.movedim(-3, 0).reshape(heads, -1)
    at = many[0].abs().argmax()
    ratios = many[:, at] / many[0, at]
    if not many[0, at] or not torch.allclose(ratios[:, None] * many[0], many, rtol=1e-9, atol=1e-12):
        return
    low, i = 2 ** math.floor(math.log2(heads)), torch.arange(heads).double()
    powers = [(how, n, 2 ** (-8 * (i + first) / n)) for n in sorted({low, 2 * low, heads, 8}) for how, first in POWERS.items()]
    for how, args, other in (("flipped", {}, ratios.flip(0)), *((how, {"n": n}, x / ratios[1]) for how, n, x in powers)):
        if not torch.allclose(other, ratios):
            yield how, args, (other / ratios)[:, None, None]
