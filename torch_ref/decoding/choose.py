"""Choose tokens one after the other: a loop that knows no model, only step(tokens, cache) -> logits, cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jaxformer.config.settings import SamplingConfig
from torch_ref.decoding.sampling import Ends, constrain, end_tokens, filler, next_tokens

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Function step(tokens, cache) -> logits `B V` of the next token, and the cache with these tokens added."""


def choose(
    step: Step,
    logits: Tensor,
    cache: Any,
    history: list[list[int]],
    n_tokens: int,
    generator: torch.Generator | None,
    sampling: SamplingConfig,
    eos: Ends,
    pad: int | None,
) -> Tensor:
    """Choose `B n_tokens` tokens after each row's history; the padding token after a row's end."""
    tokens = torch.full((len(logits), n_tokens), filler(eos, pad))
    ended = torch.zeros(len(logits), dtype=torch.bool)
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, read in enumerate(history):
        seen[row, read] = True
    for place in range(n_tokens):
        allowed = constrain(logits, history, tokens[:, :place].tolist(), sampling, n_tokens, eos)
        chosen = next_tokens(allowed, seen, generator, sampling)
        tokens[:, place] = torch.where(ended, tokens[:, place], chosen)
        seen = seen.scatter(1, tokens[:, place, None], True)
        ended = ended | torch.isin(tokens[:, place], torch.tensor(end_tokens(eos), dtype=torch.long))
        if ended.all() or place + 1 == n_tokens:
            break
        logits, cache = step(tokens[:, place], cache)
    return tokens
