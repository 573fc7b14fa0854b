"""Beam search for the likeliest sequences: it knows no model, only step(tokens, cache) -> logits, cache."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.decoding.generate import Step
from jaxformer.decoding.prepare import NEVER, NONE, real
from jaxformer.nn.precision import wide
from jaxformer.settings import BeamConfig


class BeamNumbers(NamedTuple):
    """What of a BeamConfig is traced."""

    length_penalty: Float[Array, ""] | np.generic
    early_stopping: Bool[Array, ""] | np.generic
    suppressed: Bool[Array, " V"] | np.ndarray
    """Which tokens are never chosen."""
    forced: Int[Array, " X"] | np.ndarray
    """The token of each place, or -1."""


def beam_numbers(beam: BeamConfig, vocab_size: int, size: int) -> BeamNumbers:
    """The configuration as arrays, for at most `size` tokens."""
    suppressed, forced = np.zeros(vocab_size, bool), np.full(size, NONE)
    suppressed[list(beam.suppressed)] = True
    for place, token in beam.forced:
        if place < size:
            forced[place] = token
    return BeamNumbers(real(beam.length_penalty), np.bool_(beam.early_stopping), suppressed, forced)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Beams:
    """All that the search carries from token to token; whatever lies behind an end is the end token."""

    length: Array
    """Tokens chosen so far, a scalar."""
    tokens: Array
    """B W X: sequences that go on, the likeliest first."""
    sums: Array
    """B W: their log-probabilities."""
    ended: Array
    """B W X: the best sequences that have ended."""
    scores: Array
    """B W: their scores; -inf where there is none yet."""
    done: Array
    """B: which sources are finished."""
    broken: Array
    """At which token the logits were first NaN, a scalar."""
    logits: Array
    """B*W V: of the next token."""
    cache: Any
    """What the step remembers: B*W rows, rearranged by `take`."""


def beam_search(
    step: Step,
    logits: Float[Array, "B V"],
    cache: Any,
    rules: BeamNumbers,
    end: Int[Array, ""],
    eos: Int[Array, ""],
    *,
    size: int,
    width: int,
    n_best: int,
    ngram: int,
) -> tuple[Int[Array, "B n X"], Float[Array, "B n"], Int[Array, ""]]:
    """The `n_best` sequences of at most `end` <= `size` tokens and their scores; and where the logits broke.

    `logits` and `cache` are those of B rows before the first token; `step` is called with B*W rows, those of a source side by
    side. Every step ranks the W V ways to go on. A sequence ends where `eos` is among the W best of them; the W best others go
    on. A source is finished with W ended sequences: at once, or (without early stopping) when the likeliest of those that go
    on could not beat them even at the greatest length.
    """
    batch = logits.shape[0]
    rows = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), width)
    empty = jnp.full((batch, width, size), eos)
    first = jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf).astype(wide(logits).dtype)
    sums = jnp.broadcast_to(first, (batch, width))
    beams = Beams(
        jnp.int32(0),
        empty,
        sums,
        empty,
        jnp.full_like(sums, -jnp.inf),
        jnp.zeros(batch, bool),
        jnp.int32(NEVER),
        logits[rows],
        cache.take(rows),
    )

    def one(now: Beams) -> Beams:
        return _advance(step, now, rules, end, eos, ngram)

    beams = jax.lax.while_loop(lambda now: (now.length < end) & ~now.done.all(), one, beams)
    open_scores = jnp.where(beams.done[:, None], -jnp.inf, score(beams.sums, beams.length, rules.length_penalty))
    scores, (tokens,) = _best(
        jnp.concatenate([beams.scores, open_scores], 1), n_best, jnp.concatenate([beams.ended, beams.tokens], 1)
    )
    return tokens, scores, beams.broken


def score(sums: Float[Array, "..."], length: Int[Array, ""], penalty: Float[Array, ""] | np.generic) -> Float[Array, "..."]:
    """log-probability / length^penalty, as fairseq and Marian have it (Wu et al. 2016, equation 14, is another form)."""
    return sums / jnp.asarray(jnp.maximum(length, 1), sums.dtype) ** jnp.asarray(penalty, sums.dtype)


def _advance(step: Step, now: Beams, rules: BeamNumbers, end: Array, eos: Array, ngram: int) -> Beams:
    """One more token for every sequence."""
    batch, width, _ = now.tokens.shape
    chances = jax.nn.log_softmax(wide(now.logits), -1).reshape(batch, width, -1)
    allowed = constrain(chances, now.tokens, now.length, rules, ngram)
    vocab_size = chances.shape[-1]
    ways = (now.sums[..., None] + allowed).reshape(batch, -1)
    sums, index = jax.lax.top_k(ways, min(2 * width, ways.shape[1]))
    parents, chosen = index // vocab_size, (index % vocab_size).astype(jnp.int32)
    tokens = jnp.take_along_axis(now.tokens, parents[..., None], 1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, chosen[..., None], now.length, axis=2)
    ends = chosen == eos

    among_best = (jnp.arange(sums.shape[1]) < width)[None]
    new = jnp.where(ends & among_best, score(sums, now.length + 1, rules.length_penalty), -jnp.inf)
    new = jnp.where(now.done[:, None], -jnp.inf, new)
    scores, (ended,) = _best(jnp.concatenate([now.scores, new], 1), width, jnp.concatenate([now.ended, tokens], 1))
    sums, (tokens, parents, chosen) = _best(jnp.where(ends, -jnp.inf, sums), width, tokens, parents, chosen)

    reachable = score(sums[:, 0], end, rules.length_penalty)
    finished = (scores[:, -1] > -jnp.inf) & (jnp.asarray(rules.early_stopping) | (scores[:, -1] >= reachable))
    rows = (jnp.arange(batch, dtype=jnp.int32)[:, None] * width + parents).reshape(-1)
    logits, cache = step(chosen.reshape(-1), now.cache.take(rows))
    sane = ~jnp.isnan(chances).any((1, 2)) | now.done
    return Beams(
        now.length + 1,
        tokens,
        sums,
        ended,
        scores,
        now.done | finished,
        jnp.where(sane.all(), now.broken, jnp.minimum(now.broken, now.length)),
        logits,
        cache,
    )


def _best(values: Array, n: int, *arrays: Array) -> tuple[Array, list[Array]]:
    """The n largest values of each row, and what stands in their places."""
    values, place = jax.lax.top_k(values, n)
    return values, [jnp.take_along_axis(a, place[..., None] if a.ndim == 3 else place, 1) for a in arrays]


def constrain(
    chances: Float[Array, "B W V"], tokens: Int[Array, "B W X"], length: Int[Array, ""], rules: BeamNumbers, ngram: int
) -> Float[Array, "B W V"]:
    """Log-probabilities with -inf for what may not come next; a forced token costs nothing."""
    chances = jnp.where(jnp.asarray(rules.suppressed)[None, None], -jnp.inf, chances)
    if ngram:
        chances = jnp.where(repeats(tokens, length, chances.shape[-1], ngram), -jnp.inf, chances)
    wanted = jnp.asarray(rules.forced)[length]
    only = jnp.where(jnp.arange(chances.shape[-1], dtype=jnp.int32) == wanted, 0.0, -jnp.inf).astype(chances.dtype)
    return jnp.where(wanted >= 0, only[None, None], chances)


def repeats(tokens: Int[Array, "B W X"], length: Int[Array, ""], vocab_size: int, n: int) -> Bool[Array, "B W V"]:
    """Which tokens would make the last n a run that stands in tokens[:length] already."""
    batch, width, size = tokens.shape
    if size < n:
        return jnp.zeros((batch, width, vocab_size), bool)
    starts = jnp.arange(size - n + 1, dtype=jnp.int32)
    runs = tokens[..., starts[:, None] + jnp.arange(n, dtype=jnp.int32)[None]]
    last = jax.lax.dynamic_slice_in_dim(tokens, length - (n - 1), n - 1, axis=2)
    met = (runs[..., :-1] == last[:, :, None]).all(-1) & (starts + n <= length)[None, None]
    rows = jnp.arange(batch, dtype=jnp.int32)[:, None, None], jnp.arange(width, dtype=jnp.int32)[None, :, None]
    return jnp.zeros((batch, width, vocab_size), bool).at[*rows, runs[..., -1]].max(met)
