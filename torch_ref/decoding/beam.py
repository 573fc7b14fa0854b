"""Beam search for the likeliest sequences of one source: it knows no model, only step(tokens, cache) -> logits, cache."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from jaxformer.settings import BeamConfig
from torch_ref.decoding.generate import Step


class _Ended(NamedTuple):
    """A sequence that has ended."""

    tokens: list[int]
    score: float


def beam_search(
    step: Step, logits: Tensor, cache: Any, beam: BeamConfig, n_tokens: int, eos: int
) -> tuple[list[list[int]], list[float]]:
    """The n_best sequences of at most n_tokens and their scores, the best first; `logits` `1 V` are of the first token."""
    running: list[list[int]] = [[]]
    sums = torch.zeros(1, dtype=logits.dtype)
    ended: list[_Ended] = []
    vocab_size = logits.shape[-1]
    for length in range(n_tokens):
        chances = constrain(logits.log_softmax(-1), running, beam)
        ways = (sums[:, None] + chances).flatten().sort(descending=True, stable=True)
        best, goes_on = [], []
        for rank in range(min(2 * beam.width, len(ways.values))):
            total, way = ways.values[rank], int(ways.indices[rank])
            tokens = [*running[way // vocab_size], way % vocab_size]
            if total == -torch.inf:
                continue
            if tokens[-1] != eos:
                goes_on.append((tokens, total, way // vocab_size))
            elif rank < beam.width:
                best.append(_Ended(tokens, float(score(total, length + 1, beam))))
        ended = sorted([*ended, *best], key=lambda hypothesis: -hypothesis.score)[: beam.width]
        goes_on = goes_on[: beam.width]
        if len(ended) == beam.width and (
            beam.early_stopping or not goes_on or ended[-1].score >= score(goes_on[0][1], n_tokens, beam)
        ):
            break
        if not goes_on:
            running = []
            break
        running, sums = [tokens for tokens, _, _ in goes_on], torch.stack([total for _, total, _ in goes_on])
        parents = torch.tensor([parent for _, _, parent in goes_on])
        if length + 1 < n_tokens:
            logits, cache = step(torch.tensor([tokens[-1] for tokens in running]), cache.take(parents))
    else:
        unfinished = zip(running, sums, strict=True)
        ended += [_Ended(tokens, float(score(total, n_tokens, beam))) for tokens, total in unfinished]
        ended = sorted(ended, key=lambda hypothesis: -hypothesis.score)
    return [hypothesis.tokens for hypothesis in ended[: beam.n_best]], [hypothesis.score for hypothesis in ended[: beam.n_best]]


def score(total: Tensor, length: int, beam: BeamConfig) -> Tensor:
    """log-probability / length^length_penalty."""
    return total / length**beam.length_penalty


def constrain(chances: Tensor, running: list[list[int]], beam: BeamConfig) -> Tensor:
    """Log-probabilities with -inf for what may not come next; a forced token costs nothing."""
    chances = chances.clone()
    chances[:, list(beam.suppressed)] = -torch.inf
    n = beam.no_repeat_ngram
    for row, tokens in enumerate(running):
        runs = [tokens[start : start + n] for start in range(len(tokens) - n + 1)] if n else []
        last = tokens[len(tokens) - n + 1 :]
        for run in runs:
            if run[:-1] == last:
                chances[row, run[-1]] = -torch.inf
    for place, token in beam.forced:
        if place == len(running[0]):
            chances[:] = -torch.inf
            chances[:, token] = 0.0
    return chances
