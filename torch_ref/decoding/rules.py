"""Rules for the next token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from jaxformer.config.settings import TokenRules

Ends = int | Sequence[int] | None
"""End tokens: one, several, or none."""


def end_tokens(eos: Ends) -> tuple[int, ...]:
    """Return the end tokens."""
    return () if eos is None else tuple(eos) if isinstance(eos, Sequence) else (eos,)


def filler(eos: Ends, pad: int | None) -> int:
    """Return the token that fills a row after its end: `pad`, or the first end token."""
    return pad if pad is not None else (*end_tokens(eos), 0)[0]


def constrain(
    values: Tensor, history: list[list[int]], chosen: list[list[int]], rules: TokenRules, n_tokens: int, eos: Ends
) -> Tensor:
    """Set logits or log-probabilities `R V` to -inf for tokens that may not come next, and to 0 for a token that must."""
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
    """Return the tokens with which the last n would repeat a run in the text."""
    runs = [text[start : start + n] for start in range(len(text) - n + 1)] if n else []
    return [run[-1] for run in runs if run[:-1] == text[len(text) - n + 1 :]]
