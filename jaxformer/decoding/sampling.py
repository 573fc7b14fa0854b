"""Rules for the next token, as arrays, with their effect on one step's logits; and sampling of one token from its logits.

Every number of a SamplingConfig is traced: a new value needs no compilation."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.settings import SamplingConfig, TokenRules
from jaxformer.decoding.prepare import NONE, check_id, real
from jaxformer.errors import InputError

Ends = int | Sequence[int] | None
"""End tokens: one, several, or none."""


class Rules(NamedTuple):
    """Traced fields of a TokenRules, and the tokens that end a sequence."""

    suppressed: Bool[Array, " V"] | np.ndarray
    """True for tokens that are never chosen."""
    ends: Bool[Array, " V"] | np.ndarray
    """True for tokens that end a sequence."""
    min_tokens: Int[Array, ""] | np.int32
    """Number of tokens before an end is allowed."""
    forced: Int[Array, " X"] | np.ndarray
    """Forced token of each place, or -1."""
    pad: Int[Array, ""] | np.int32
    """Token that fills a row after its end."""
    not_first: Bool[Array, " V"] | np.ndarray
    """True for tokens that are not chosen at place 0."""
    timestamps: "Timestamps | None"


class Timestamps(NamedTuple):
    """Traced numbers of the rules for timestamps."""

    begin: Int[Array, ""] | np.int32
    """Id of the first one."""
    latest: Int[Array, ""] | np.int32
    """Largest id of the first one that is chosen."""
    end: Int[Array, ""] | np.int32
    """Smallest id of the tokens that may stand between a pair, and are no text: the end tokens."""


def make_rules(rules: TokenRules, eos: Ends, pad: int | None, vocab_size: int, n_tokens: int, size: int) -> Rules:
    """Convert the rules to arrays, for n_tokens <= size; without a `pad`, the first end token fills. InputError for a rule that
    does not fit.
    """
    ends = end_tokens(eos)
    filler = pad if pad is not None else ends[0] if ends else 0
    named = [("eos", token) for token in ends] + [("pad", filler)]
    named += [("suppressed token", token) for token in rules.suppressed]
    named += [("not_first", token) for token in rules.not_first]
    for name, token in named + [("forced token", token) for _, token in rules.forced]:
        check_id(name, token, vocab_size)
    forced: dict[int, int] = {}
    for place, token in rules.forced:
        if not -n_tokens <= place < n_tokens:
            raise InputError(f"forced place {place} lies after the {n_tokens} tokens asked for; ask for more, or leave it out")
        if forced.setdefault(place % n_tokens, token) != token:
            raise InputError(f"forced place -1 is place {n_tokens - 1}, which has another token; give one token to each place")
    places = np.full(size, NONE)
    places[list(forced)] = list(forced.values())
    suppressed, is_end, not_first = np.zeros((3, vocab_size), bool)
    suppressed[list(rules.suppressed)] = True
    is_end[list(ends)] = True
    not_first[list(rules.not_first)] = True
    stamps = make_timestamps(rules, ends, vocab_size)
    return Rules(suppressed, is_end, np.int32(rules.min_tokens), places, np.int32(filler), not_first, stamps)


def make_timestamps(rules: TokenRules, ends: tuple[int, ...], vocab_size: int) -> Timestamps | None:
    """Return the numbers of the rules for timestamps, if there are any; InputError for ids that do not fit them."""
    begin, bound = rules.timestamps, rules.latest_first_timestamp
    if begin is None:
        return None
    check_id("timestamps", begin, vocab_size)
    if len(ends) != 1 or ends[0] >= begin:
        raise InputError(f"eos = {ends!r:.40} ends no text with timestamps from {begin} on; give one end token below them")
    latest = vocab_size - 1 if bound is None else min(begin + bound, vocab_size - 1)
    return Timestamps(np.int32(begin), np.int32(latest), np.int32(ends[0]))


def end_tokens(eos: Ends) -> tuple[int, ...]:
    """Return the end tokens, unchecked."""
    return () if eos is None else tuple(eos) if isinstance(eos, Sequence) else (eos,)


def constrain(
    values: Float[Array, "R V"],
    history: Int[Array, "R H"],
    tokens: Int[Array, "R X"],
    place: Int[Array, ""],
    rules: Rules,
    ngram: int,
) -> Float[Array, "R V"]:
    """Set logits or log-probabilities to -inf for tokens that may not stand at `place`, and to 0 for a token that must.

    Before that place stand the history, right-aligned, with -1 where a row has fewer, and tokens[:place].
    """
    vocab_size = values.shape[-1]
    barred = jnp.asarray(rules.suppressed) | (jnp.asarray(rules.ends) & (place < jnp.asarray(rules.min_tokens)))
    barred |= jnp.asarray(rules.not_first) & (place == 0)
    values = jnp.where(barred[None], -jnp.inf, values)
    if ngram:
        text = jnp.concatenate([history, tokens], 1)
        values = jnp.where(repeats(text, place + history.shape[1], vocab_size, ngram), -jnp.inf, values)
    if rules.timestamps is not None:
        values = with_timestamps(values, tokens, place, rules.timestamps)
    wanted = jnp.asarray(rules.forced)[place]
    only = jnp.where(jnp.arange(vocab_size, dtype=jnp.int32) == wanted, 0.0, -jnp.inf).astype(values.dtype)
    return jnp.where(wanted >= 0, only[None], values)


def with_timestamps(
    values: Float[Array, "R V"], tokens: Int[Array, "R X"], place: Int[Array, ""], rules: Timestamps
) -> Float[Array, "R V"]:
    """Set logits or log-probabilities to -inf for what the rules of timestamps bar after tokens[:place].

    After one timestamp that stands alone comes its second, or an end; after a pair, or at the begin after one, comes text.
    """
    begin, ids = jnp.asarray(rules.begin), jnp.arange(values.shape[-1], dtype=jnp.int32)[None]
    is_time = ids >= begin
    last, before = (jnp.take(tokens, jnp.maximum(place - back, 0), axis=1) >= begin for back in (1, 2))
    last, before = last & (place >= 1), before | (place < 2)
    written = jnp.where(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < place, tokens, -1).max(1)
    least = jnp.where(written < begin, begin, written + (before | ~last).astype(jnp.int32))
    barred = (ids == begin - 1) | (is_time & (ids < least[:, None]))
    barred |= (last & before)[:, None] & is_time
    barred |= (last & ~before)[:, None] & (ids < jnp.asarray(rules.end))
    barred |= (place == 0) & (~is_time | (ids > jnp.asarray(rules.latest)))
    return prefer_timestamps(jnp.where(barred, -jnp.inf, values), begin)


def prefer_timestamps(values: Float[Array, "R V"], begin: Int[Array, ""]) -> Float[Array, "R V"]:
    """Set all but timestamps to -inf where timestamps together are likelier than any other token."""
    is_time = jnp.arange(values.shape[-1], dtype=jnp.int32)[None] >= begin
    together = jax.nn.logsumexp(jnp.where(is_time, values, -jnp.inf), axis=-1)
    likelier = together > jnp.where(is_time, -jnp.inf, values).max(-1)
    return jnp.where(likelier[:, None] & ~is_time, -jnp.inf, values)


def repeats(text: Int[Array, "R T"], length: Int[Array, ""], vocab_size: int, n: int) -> Bool[Array, "R V"]:
    """True for tokens with which the last n would repeat a run in text[:length]."""
    rows, size = text.shape
    if size < n:
        return jnp.zeros((rows, vocab_size), bool)
    starts = jnp.arange(size - n + 1, dtype=jnp.int32)
    runs = text[:, starts[:, None] + jnp.arange(n, dtype=jnp.int32)[None]]
    last = jax.lax.dynamic_slice_in_dim(text, length - (n - 1), n - 1, axis=1)
    met = (runs[..., :-1] == last[:, None]).all(-1) & (starts + n <= length)[None] & (runs >= 0).all(-1)
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    return jnp.zeros((rows, vocab_size), bool).at[row, runs[..., -1]].max(met)


Number = Float[Array, ""] | Int[Array, ""] | np.generic | float | int
GREEDY = SamplingConfig(temperature=0.0)
"""Greedy decoding: always the likeliest token."""
NUMBERS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
"""Fields of a SamplingConfig that `next_tokens` takes, in its order."""


def numbers(sampling: SamplingConfig) -> tuple[np.generic, ...]:
    """Convert the configuration to arguments for `next_tokens`, of the same dtypes whatever the values."""
    values = ((name, getattr(sampling, name)) for name in NUMBERS)
    return tuple(np.int32(value) if name == "top_k" else real(value) for name, value in values)


def penalise(logits: Float[Array, "B V"], seen: Bool[Array, "B V"], penalty: Number) -> Float[Array, "B V"]:
    """Make tokens seen before less likely: divide positive logits by the penalty, and multiply negative ones by it."""
    penalty = jnp.asarray(penalty, logits.dtype)
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Float[Array, "B V"], k: Number) -> Float[Array, "B V"]:
    """Set to -inf all but the k likeliest tokens and those as likely as the k-th; k = 0 keeps all."""

    def cut(logits):
        place = jnp.minimum(jnp.asarray(k), logits.shape[-1]) - 1
        least = jnp.sort(logits, axis=-1, descending=True)[:, place]
        return jnp.where(logits >= least[:, None], logits, -jnp.inf)

    return jax.lax.cond(jnp.asarray(k) == 0, lambda logits: logits, cut, logits)


def keep_top_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """Set to -inf all but the smallest set of likeliest tokens whose probabilities reach p; keeps at least one."""

    def cut(logits):
        ranked = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(ranked, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        inside = (before < jnp.asarray(p, before.dtype)) | (jnp.arange(logits.shape[-1])[None] == 0)
        return jnp.where(logits >= jnp.where(inside, ranked, jnp.inf).min(-1, keepdims=True), logits, -jnp.inf)

    return jax.lax.cond(jnp.asarray(p) >= 1, lambda logits: logits, cut, logits)


def keep_min_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """Set to -inf tokens of less than p times the likeliest token's probability."""
    least = logits.max(-1, keepdims=True) + jnp.log(jnp.asarray(p, logits.dtype))
    return jnp.where(logits >= least, logits, -jnp.inf)


def next_tokens(
    logits: Float[Array, "B V"],
    seen: Bool[Array, "B V"],
    key: PRNGKeyArray,
    repetition_penalty: Number,
    temperature: Number,
    top_k: Number,
    top_p: Number,
    min_p: Number,
) -> Int[Array, " B"]:
    """Sample from softmax(logits / temperature) among the tokens that every rule keeps; at temperature 0 take the argmax."""
    logits = penalise(logits, seen, repetition_penalty)

    def sample(logits):
        scaled = (logits - logits.max(-1, keepdims=True)) / jnp.asarray(temperature, logits.dtype)
        kept = keep_min_p(keep_top_p(keep_top_k(scaled, top_k), top_p), min_p)
        return jax.random.categorical(key, kept, axis=-1).astype(jnp.int32)

    return jax.lax.cond(jnp.asarray(temperature) == 0, lambda logits: logits.argmax(-1).astype(jnp.int32), sample, logits)
