"""One token from its logits."""

import torch
from torch import Tensor


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """-inf for all but the k likeliest, and those as likely as the k-th; k = 0 keeps all."""
    if k == 0:
        return logits
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """-inf for all but the smallest set of likeliest tokens whose probabilities reach p; always at least one."""
    ranked = logits.sort(descending=True).values
    probabilities = ranked.softmax(-1)
    outside = probabilities.cumsum(-1) - probabilities >= p
    outside[:, 0] = False
    least = ranked.masked_fill(outside, torch.inf).amin(-1, keepdim=True)
    return logits.masked_fill(logits < least, -torch.inf)


def next_tokens(logits: Tensor, generator: torch.Generator, temperature: float, top_k: int, top_p: float) -> Tensor:
    """A sample from softmax(logits / temperature) among what top-k and then top-p keep; the argmax at temperature 0."""
    if temperature == 0:
        return logits.argmax(-1)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    kept = keep_top_p(keep_top_k(scaled, top_k), top_p)
    return torch.multinomial(kept.softmax(-1), 1, generator=generator)[:, 0]
