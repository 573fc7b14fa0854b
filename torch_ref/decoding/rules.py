"""Which tokens may come next."""

from collections.abc import Sequence

import torch
from torch import Tensor

from jaxformer.config.settings import TokenRules

Ends = int | Sequence[int] | None
"""One end token, several of them, or none."""


def end_tokens(eos: Ends) -> tuple[int, ...]:
    """The end tokens."""
    return () if eos is None else tuple(eos) if isinstance(eos, Sequence) else (eos,)


def filler(eos: Ends, pad: int | None) -> int:
    """What fills a row behind its end: `pad`, or the first end."""
    return pad if pad is not None else (*end_tokens(eos), 0)[0]


def constrain(
    values: Tensor, history: list[list[int]], chosen: list[list[int]], rules: TokenRules, n_tokens: int, eos: Ends
) -> Tensor:
    """Logits or log-probabilities `R V` with -inf for what may not stand behind what was read and chosen, and 0 for a token
    that must."""
    values, place = values.clone(), len(chosen[0])
    values[:, list(rules.suppressed)] = -torch.inf
    if place < rules.min_tokens:
        values[:, list(end_tokens(eos))] = -torch.inf
    for row, (read, tokens) in enumerate(zip(history, chosen, strict=True)):
        values[row, repeats([*read, *tokens], rules.no_repeat_ngram)] = -torch.inf
    for where, token in rules.forced:
        if place == where % n_tokens:
            values[:] = -torch.inf
            values[:, token] = 0.0
    return values


def repeats(text: list[int], n: int) -> list[int]:
    """Which tokens would make the last n a run that stands in the text already."""
    runs = [text[start : start + n] for start in range(len(text) - n + 1)] if n else []
    return [run[-1] for run in runs if run[:-1] == text[len(text) - n + 1 :]]
