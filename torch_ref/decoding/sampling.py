"""Rules for the next token, and sampling of one token from its logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from jaxformer.config.settings import SamplingConfig, TokenRules

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
    if place == 0:
        values[:, list(rules.not_first)] = -torch.inf
    if place < rules.min_tokens:
        values[:, list(end_tokens(eos))] = -torch.inf
    for row, (read, tokens) in enumerate(zip(history, chosen, strict=True)):
        values[row, repeats([*read, *tokens], rules.no_repeat_ngram)] = -torch.inf
    if rules.timestamps is not None:
        numbers = rules.timestamps, rules.latest_first_timestamp, end_tokens(eos)[0]
        values = torch.stack([with_timestamps(row, tokens, *numbers) for row, tokens in zip(values, chosen, strict=True)])
    for where, token in rules.forced:
        if place == where % n_tokens:
            values[:] = -torch.inf
            values[:, token] = 0.0
    return values


def with_timestamps(values: Tensor, tokens: list[int], begin: int, latest: int | None, end: int) -> Tensor:
    """Set logits or log-probabilities of one row to -inf for what the rules of timestamps bar after these tokens."""
    times = [token for token in tokens if token >= begin]
    values[begin - 1] = -torch.inf
    last, before = len(tokens) > 0 and tokens[-1] >= begin, len(tokens) < 2 or tokens[-2] >= begin
    if last and before:
        values[begin:] = -torch.inf
    elif last:
        values[:end] = -torch.inf
    if times:
        values[begin : times[-1] + (0 if last and not before else 1)] = -torch.inf
    if not tokens:
        values[:begin] = -torch.inf
        if latest is not None:
            values[begin + latest + 1 :] = -torch.inf
    return prefer_timestamps(values, begin)


def prefer_timestamps(values: Tensor, begin: int) -> Tensor:
    """Set all but timestamps to -inf where timestamps together are likelier than any other token."""
    if values[begin:].logsumexp(0) > values[:begin].max():
        values[:begin] = -torch.inf
    return values


def repeats(text: list[int], n: int) -> list[int]:
    """Return the tokens with which the last n would repeat a run in the text."""
    runs = [text[start : start + n] for start in range(len(text) - n + 1)] if n else []
    return [run[-1] for run in runs if run[:-1] == text[len(text) - n + 1 :]]


GREEDY = SamplingConfig(temperature=0.0)
"""Greedy decoding: always the likeliest token."""


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make tokens seen before less likely: divide positive logits by the penalty, and multiply negative ones by it."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set to -inf all but the k likeliest tokens and those as likely as the k-th; k = 0 keeps all."""
    if k == 0:
        return logits
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Set to -inf all but the smallest set of likeliest tokens whose probabilities reach p; keeps at least one."""
    if p >= 1:
        return logits
    ranked = logits.sort(descending=True).values
    probabilities = ranked.softmax(-1)
    outside = probabilities.cumsum(-1) - probabilities >= p
    outside[:, 0] = False
    least = ranked.masked_fill(outside, torch.inf).amin(-1, keepdim=True)
    return logits.masked_fill(logits < least, -torch.inf)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Set to -inf tokens of less than p times the likeliest token's probability."""
    least = logits.amax(-1, keepdim=True) + torch.tensor(p, dtype=logits.dtype).log()
    return logits.masked_fill(logits < least, -torch.inf)


def next_tokens(logits: Tensor, seen: Tensor, generator: torch.Generator | None, sampling: SamplingConfig) -> Tensor:
    """Sample from softmax(logits / temperature) among the tokens that every rule keeps; at temperature 0 take the argmax."""
    logits = penalise(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    kept = keep_min_p(keep_top_p(keep_top_k(scaled, sampling.top_k), sampling.top_p), sampling.min_p)
    return torch.multinomial(kept.softmax(-1), 1, generator=generator)[:, 0]
