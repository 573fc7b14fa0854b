"""Beam search for the likeliest sequences of one source: it knows no model, only step(tokens, cache) -> logits, cache."""

from typing import Any

import torch
from torch import Tensor

from jaxformer.config.settings import BeamConfig
from torch_ref.decoding.choose import Step
from torch_ref.decoding.sampling import Ends, constrain, end_tokens

Hypothesis = tuple[list[int], float]
"""Sequence up to its end, or to the greatest length, and its score."""


def beam_search(
    step: Step, logits: Tensor, cache: Any, history: list[int], beam: BeamConfig, n_tokens: int, eos: Ends
) -> list[Hypothesis]:
    """Find the n_best sequences of at most n_tokens, best first, after `history`; `logits` `1 V` are of the first token."""
    running: list[list[int]] = [[]]
    sums = torch.zeros(1, dtype=logits.dtype)
    ended: list[Hypothesis] = []
    vocab_size, ends = logits.shape[-1], end_tokens(eos)
    candidates = max(2, 1 + len(set(ends))) * beam.width
    for length in range(1, n_tokens + 1):
        chances = constrain(logits.log_softmax(-1), [history] * len(running), running, beam, n_tokens, eos)
        ways = (sums[:, None] + chances).flatten().sort(descending=True, stable=True)
        goes_on = []
        for rank in range(min(candidates, len(ways.values))):
            total, way = ways.values[rank], int(ways.indices[rank])
            tokens = [*running[way // vocab_size], way % vocab_size]
            if total == -torch.inf:
                continue
            if tokens[-1] not in ends and length < n_tokens:
                goes_on.append((tokens, total, way // vocab_size))
            elif rank < beam.width:
                ended.append((tokens, float(score(total, length, beam))))
        ended = sorted(ended, key=lambda found: -found[1])[: beam.width]
        goes_on = goes_on[: beam.width]
        if not goes_on or (len(ended) == beam.width and finished(ended[-1][1], goes_on[0][1], length, n_tokens, beam)):
            break
        running, sums = [tokens for tokens, _, _ in goes_on], torch.stack([total for _, total, _ in goes_on])
        parents = torch.tensor([parent for _, _, parent in goes_on])
        logits, cache = step(torch.tensor([tokens[-1] for tokens in running]), cache.take(parents))
    return ended[: beam.n_best]


def finished(worst: float, best: Tensor, length: int, n_tokens: int, beam: BeamConfig) -> bool:
    """True if, with as many ended sequences as the beam is wide, the best running sequence need not be followed."""
    if beam.early_stopping is True:
        return True
    greatest = beam.early_stopping == "never" and beam.length_penalty > 0
    return worst >= float(score(best, n_tokens if greatest else length, beam))


def score(total: Tensor, length: int, beam: BeamConfig) -> Tensor:
    """log-probability / length^length_penalty."""
    return total / length**beam.length_penalty
