"""Continue a prompt."""

from dataclasses import astuple

import torch
from torch import Tensor

from jaxformer.settings import SamplingConfig
from torch_ref.decoding.sampling import next_tokens
from torch_ref.models.gpt import GPT
from torch_ref.nn.cache import empty_cache


@torch.no_grad()
def generate(
    model: GPT, prompt: Tensor, n_tokens: int, generator: torch.Generator, sampling: SamplingConfig = SamplingConfig()
) -> Tensor:
    """`B P` ids -> the `B n_tokens` ids that follow; only the last `context` tokens are seen."""
    context = model.config.context
    tokens = prompt[:, -context:]
    end = tokens.shape[1] + n_tokens
    start = tokens.shape[1]
    states, cache = model.states(tokens, empty_cache(model.config, len(tokens), context, model.embed.token.weight.dtype))
    while tokens.shape[1] < end:
        logits = model.read_out(states[:, -1:])[:, 0]
        chosen = next_tokens(logits, generator, *astuple(sampling))[:, None]
        tokens = torch.cat([tokens, chosen], dim=1)
        if tokens.shape[1] <= context:
            states, cache = model.states(chosen, cache)
        else:
            states, _ = model.states(tokens[:, -context:], None)
    return tokens[:, start:]
