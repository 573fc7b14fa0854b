"""Translation with an encoder-decoder: target tokens are chosen one by one, or by beam search.

Arguments are checked in jaxformer only; this twin is its reference.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from jaxformer.config.settings import BeamConfig, SamplingConfig
from torch_ref.decoding.beam import Hypothesis, beam_search
from torch_ref.decoding.choose import Step, choose
from torch_ref.decoding.sampling import GREEDY, Ends
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.nn.cache import KVCache, empty_cache
from torch_ref.nn.masks import padding_mask

Start = int | Sequence[int]
"""Tokens that every target begins with, which are not part of what is written."""


def read(
    model: EncoderDecoder, source: Tensor, valid: Tensor | None, start: Start, n_tokens: int
) -> tuple[Step, Tensor, KVCache | None, list[int]]:
    """Return a step, the first token's logits, the cache, and the start; for a single source, a step may have more rows."""
    if valid is not None:
        order = torch.argsort(valid.logical_not().long(), dim=1, stable=True)
        source, valid = source.gather(1, order), valid.gather(1, order)
    mask = None if valid is None else padding_mask(valid)
    memory = model.encode(source, mask=mask)
    remembered = model.remember(memory)
    started = torch.tensor([[start] if isinstance(start, int) else [*start]]).expand(len(source), -1)
    cache = empty_cache(model, len(source), started.shape[1] - 1 + n_tokens)
    logits, cache = model.extend(started, cache, remembered, memory_mask=mask)

    def step(tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache | None]:
        rows = torch.arange(len(tokens)) * len(source) // len(tokens)
        logits, after = model.extend(tokens[:, None], cache, remembered.take(rows), memory_mask=mask)
        return logits[:, 0], after

    return step, logits[:, -1], cache, started[0].tolist()


@torch.no_grad()
def translate(
    model: EncoderDecoder,
    source: Tensor,
    n_tokens: int,
    sampling: SamplingConfig = GREEDY,
    *,
    start: Start,
    eos: Ends,
    pad: int | None = None,
    valid: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Translate `B S` source ids, or frames `B _ M`, to `B n_tokens` target ids after `start`; the padding token after an
    end."""
    step, logits, cache, started = read(model, source, valid, start, n_tokens)
    return choose(step, logits, cache, [started] * len(source), n_tokens, generator, sampling, eos, pad)


@torch.no_grad()
def translate_beam(
    model: EncoderDecoder,
    source: Tensor,
    n_tokens: int,
    beam: BeamConfig = BeamConfig(),
    *,
    start: Start,
    eos: Ends,
    valid: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Find the likeliest targets of each source by beam search."""
    found = []
    for row in range(len(source)):
        real = None if valid is None else valid[row : row + 1]
        step, logits, cache, started = read(model, source[row : row + 1], real, start, n_tokens)
        found.append(beam_search(step, logits, cache, started, beam, n_tokens, eos))
    return found
