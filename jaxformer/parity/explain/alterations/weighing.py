"""Attention's weights, made of scores in other ways than torch's."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.capture.torch_softmax import fused_scores
from jaxformer.parity.numerics.float_masks import MASKED

Weigh = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores, what is added to them where keys are seen, and which are seen -> weights."""
FILLS = (-1e4, -1e9, -100.0, -1e3)
"""Numbers that mask scores; nearer ones are solved for."""


def parts_of_scores(function: Any, args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of an operation that masks them: the scores, what is added where keys are seen, and which are seen."""
    name = function.__name__.strip("_")
    if name == "masked_fill":
        scores, mask = args[0], args[1]
        return scores, torch.zeros_like(scores), ~mask.expand_as(scores)
    if name == "where":
        seen, one, other = args
        hidden_behind = bool((torch.as_tensor(other) <= MASKED).any())
        scores = one if hidden_behind else other
        return scores, torch.zeros_like(scores), (seen if hidden_behind else ~seen).expand_as(scores)
    mask, scores = (args[0], torch.bmm(*args[1:3])) if name == "baddbmm" else args[:2]
    if (scores <= MASKED).any() and not (mask <= MASKED).any():
        mask, scores = scores, mask
    mask = mask.expand_as(scores)
    return scores, mask.masked_fill(mask <= MASKED, 0.0), mask > MASKED


def named_arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """Of torch's fused attention."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return dict(zip(names, args, strict=False)) | kwargs


def parts_of_mask(args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of the arguments of torch's fused attention."""
    named = named_arguments(args, kwargs)
    mask, causal = named.pop("attn_mask", None), named.pop("is_causal", False)
    scores = fused_scores(**named)
    seen, added = torch.ones_like(scores, dtype=torch.bool), torch.zeros_like(scores)
    if causal:
        seen = seen.tril()
    elif mask is not None and mask.dtype == torch.bool:
        seen = mask.expand_as(scores)
    elif mask is not None:
        mask = mask.expand_as(scores)
        seen, added = mask > MASKED, mask.masked_fill(mask <= MASKED, 0.0)
    return scores, added, seen


def fused_attention(weigh: Weigh, args: Any, kwargs: Any) -> torch.Tensor:
    """torch's fused attention, but for how weights come of scores; a row without keys gives what it does in torch."""
    scores, added, seen = parts_of_mask(args, kwargs)
    v, weights = args[2], weigh(scores, added, seen)
    y = weights @ v.repeat_interleave(weights.shape[-3] // v.shape[-3], -3)
    rows = seen.any(-1, keepdim=True)
    return y if rows.all() else torch.where(rows, y, functional.scaled_dot_product_attention(*args, **kwargs))


def softmax(scores: torch.Tensor, added: torch.Tensor, seen: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """torch's, in which all keys count the same where none is seen; or over another axis."""
    masked = (scores + added).masked_fill(~seen, -math.inf)
    return (masked.masked_fill(~seen.any(-1, keepdim=True), 0.0) if axis == -1 else masked).softmax(axis)


def masked_behind(scores: torch.Tensor, added: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """What is masked counts in the sum."""
    return (scores + added).softmax(-1) * seen


def filled(number: float, scores: torch.Tensor, added: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Masked scores are a number."""
    return torch.where(seen, scores + added, number).softmax(-1)


def lowered(number: float, scores: torch.Tensor, added: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Masked scores have a number on them."""
    return torch.where(seen, scores + added, scores + number).softmax(-1)


def beside_a_sink(scores: torch.Tensor, added: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Beside a key whose score is 0, which has no value."""
    masked = (scores + added).masked_fill(~seen, -math.inf)
    return torch.cat([masked, torch.zeros_like(masked[..., :1])], -1).softmax(-1)[..., :-1]


def each_by_itself(
    function: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor, added: torch.Tensor, seen: Any
) -> Any:
    """A function of each score, which are not divided by their sum."""
    return function(scores + added) * seen


INSTEAD: dict[str, Weigh] = {
    "has a sink of 0 beside the keys": beside_a_sink,
    "has a sigmoid for the softmax": partial(each_by_itself, torch.sigmoid),
    "has a relu for the softmax": partial(each_by_itself, torch.relu),
}
"""Taken for a softmax."""


def with_added(
    change: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor, added: torch.Tensor, seen: Any
) -> torch.Tensor:
    """Something else is added."""
    return softmax(scores, change(added), seen)


def slopes(added: torch.Tensor) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Of what is added, one array times a number of each head: other numbers, in words; nothing of another array."""
    heads = added.shape[-3] if added.ndim > 2 else 1
    if heads < 2:
        return {}
    first = added.select(-3, 0)
    at = first.abs().argmax()
    many = added.movedim(-3, 0).reshape(heads, -1)
    if not first.flatten()[at]:
        return {}
    ratios = many[:, at] / many[0, at]
    if not torch.allclose(ratios[:, None] * many[0], many, rtol=1e-9, atol=1e-12):
        return {}
    step = ratios[1]
    found = {"from the last head to the first": ratios.flip(0)}
    low = 2 ** math.floor(math.log2(heads))
    for n in sorted({low, 2 * low, heads, 8}):
        for says, i in (("", torch.arange(heads) + 1.0), (", the first 1", torch.arange(heads) * 1.0)):
            found[f"2^(-8 i/{n}){says}"] = 2 ** (-8 * i.double() / n) / step
    return {says: partial(times_heads, each / ratios) for says, each in found.items() if not torch.allclose(each, ratios)}


def times_heads(numbers: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """A multiple of each head."""
    return added * numbers[:, None, None]
