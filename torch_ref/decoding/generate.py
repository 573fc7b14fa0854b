"""Choose token after token: the loop, which knows no model, and how a GPT continues a prompt."""

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from jaxformer.settings import SamplingConfig
from torch_ref.decoding.sampling import next_tokens
from torch_ref.models.gpt import GPT
from torch_ref.nn.cache import KVCache, empty_cache
from torch_ref.nn.masks import padding_mask

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""step(tokens, cache) -> logits `B V` of the token after them, and the cache that holds them."""


def choose(
    step: Step,
    logits: Tensor,
    cache: Any,
    seen: Tensor,
    n_tokens: int,
    generator: torch.Generator | None,
    sampling: SamplingConfig,
    eos: int | None,
) -> Tensor:
    """`B n_tokens` tokens; the end token behind a row's end."""
    tokens = torch.full((len(logits), n_tokens), 0 if eos is None else eos)
    ended = torch.zeros(len(logits), dtype=torch.bool)
    for place in range(n_tokens):
        chosen = next_tokens(logits, seen, generator, *astuple(sampling))
        tokens[:, place] = torch.where(ended, tokens[:, place], chosen)
        seen = seen.scatter(1, tokens[:, place, None], True)
        ended = ended | (tokens[:, place] == eos)
        if ended.all() or place + 1 == n_tokens:
            break
        logits, cache = step(tokens[:, place], cache)
    return tokens


@torch.no_grad()
def generate(
    model: GPT,
    prompt: Tensor,
    n_tokens: int,
    generator: torch.Generator | None,
    sampling: SamplingConfig = SamplingConfig(),
    *,
    padding: Tensor | None = None,
    eos: int | None = None,
) -> Tensor:
    """`B P` ids, of which the first padding[b] are none -> the ids that follow; only the last `context` tokens are seen."""
    config = model.config
    context = config.context
    padding = torch.zeros(len(prompt), dtype=torch.long) if padding is None else padding
    text = prompt[:, -context:]
    padding = (padding - max(prompt.shape[1] - context, 0)).clamp(min=0)

    def states(tokens: Tensor, cache: KVCache | None, start: int, padding: Tensor) -> tuple[Tensor, KVCache | None]:
        positions = (start + torch.arange(tokens.shape[1])[None] - padding[:, None]).clamp(min=0)
        keys = tokens.shape[1] if cache is None else cache.capacity
        x, cache = model.states(
            tokens, cache, mask=padding_mask(torch.arange(keys)[None] >= padding[:, None]), positions=positions
        )
        return model.read_out(x[:, -1:])[:, 0], cache

    def step(chosen: Tensor, now: tuple[Tensor, KVCache | None]) -> tuple[Tensor, tuple[Tensor, KVCache | None]]:
        text, cache = torch.cat([now[0], chosen[:, None]], 1), now[1]
        if text.shape[1] <= context and cache is not None:
            logits, cache = states(chosen[:, None], cache, cache.length, padding)
        else:
            gone = text.shape[1] - context
            logits, _ = states(text[:, -context:], None, 0, (padding - gone).clamp(min=0))
        return logits, (text, cache)

    empty = empty_cache(model, len(text), context)
    logits, cache = states(text, empty, 0, padding)
    real = torch.arange(text.shape[1])[None] >= padding[:, None]
    counts = torch.zeros(logits.shape, dtype=torch.long).scatter_add(1, text.long(), real.long())
    return choose(step, logits, (text, cache), counts > 0, n_tokens, generator, sampling, eos)
