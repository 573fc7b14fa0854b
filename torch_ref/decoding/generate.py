"""Text generation with a GPT: token by token, or by beam search.

Arguments are checked in jaxformer only; this twin is its reference.
"""

import torch
from torch import Tensor

from jaxformer.config.settings import BeamConfig, SamplingConfig
from torch_ref.decoding.beam import Hypothesis, beam_search
from torch_ref.decoding.choose import choose
from torch_ref.decoding.sampling import GREEDY, Ends
from torch_ref.models.gpt import GPT
from torch_ref.nn.cache import KVCache, empty_cache
from torch_ref.nn.masks import padding_mask


@torch.no_grad()
def generate(
    model: GPT,
    prompt: Tensor,
    n_tokens: int,
    sampling: SamplingConfig = GREEDY,
    *,
    eos: Ends = None,
    pad: int | None = None,
    valid: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue `B P` ids by `B n_tokens` ids; only the last `context` tokens are seen."""
    config = model.config
    context = config.context
    valid = torch.ones(prompt.shape, dtype=torch.bool) if valid is None else valid
    order = torch.argsort(valid.long(), dim=1, stable=True)
    text, valid = prompt.gather(1, order)[:, -context:], valid.gather(1, order)[:, -context:]
    padding = valid.logical_not().sum(1)

    def states(tokens: Tensor, cache: KVCache | None, start: int, padding: Tensor) -> tuple[Tensor, KVCache | None]:
        positions = (start + torch.arange(tokens.shape[1])[None] - padding[:, None]).clamp(min=0)
        keys = tokens.shape[1] if cache is None else cache.capacity
        x, cache = model.last_hidden_state(
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
    history = [row[real].tolist() for row, real in zip(text, valid, strict=True)]
    return choose(step, logits, (text, cache), history, n_tokens, generator, sampling, eos, pad)


@torch.no_grad()
def generate_beam(
    model: GPT,
    prompt: Tensor,
    n_tokens: int,
    beam: BeamConfig = BeamConfig(),
    *,
    eos: Ends = None,
    valid: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Find the likeliest continuations of each prompt by beam search."""
    found = []
    for row, text in enumerate(prompt):
        text = (text if valid is None else text[valid[row]])[-model.config.context :]

        def step(tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache | None]:
            logits, after = model.extend(tokens[:, None], cache)
            return logits[:, -1], after

        cache = empty_cache(model, 1, len(text) + n_tokens)
        logits, cache = model.extend(text[None], cache)
        found.append(beam_search(step, logits[:, -1], cache, text.tolist(), beam, n_tokens, eos))
    return found
