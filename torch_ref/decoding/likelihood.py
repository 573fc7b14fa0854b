"""Likelihood of a target that is written already: all of its places in one call."""

import torch
from torch import Tensor

from jaxformer.config.settings import SamplingConfig
from torch_ref.decoding.sampling import constrain, keep_top_k
from torch_ref.models.encoder_decoder import EncoderDecoder


@torch.no_grad()
def log_probabilities(
    model: EncoderDecoder, source: Tensor, tokens: list[int], sampling: SamplingConfig, *, start: list[int], eos: int
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of a target's tokens, and the probabilities `P V` of what follows each of its start."""
    logits = model.decode(torch.tensor([[*start, *tokens[:-1]]]), model.encode(source))[0]
    found = []
    for place, token in enumerate(tokens):
        own = logits[len(start) - 1 + place][None]
        allowed = constrain(own, [start], [tokens[:place]], sampling, len(tokens), eos)
        found.append(keep_top_k(allowed, sampling.top_k).log_softmax(-1)[0, token])
    return torch.stack(found), logits[: len(start)].softmax(-1)
