"""Beam search for the likeliest sequences: it knows no model, only step(tokens, cache) -> logits, cache."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.config.settings import BeamConfig
from jaxformer.decoding.choose import Step, first
from jaxformer.decoding.prepare import NEVER, check_broken, check_length, real
from jaxformer.decoding.sampling import Ends, Rules, constrain, end_tokens, make_rules
from jaxformer.errors import InputError
from jaxformer.nn.precision import wide
from jaxformer.parallel.placement import on_host
from jaxformer.validation.fields import check_kind


class BeamNumbers(NamedTuple):
    """Traced numbers of a BeamConfig."""

    length_penalty: Float[Array, ""] | np.generic
    at_once: Bool[Array, ""] | np.bool_
    """True if a source is finished as soon as W sequences have ended."""
    at_greatest: Bool[Array, ""] | np.bool_
    """True if running sequences are scored at the greatest length, not at their present one."""
    rules: Rules


class BeamShape(NamedTuple):
    """Static sizes of a BeamConfig, which decide the compiled program."""

    width: int
    n_best: int
    ngram: int
    candidates: int
    """Number of ranked continuations per source: with W of each end token among them, W others remain."""


class Hypotheses(NamedTuple):
    """Sequences found by a beam search, best first."""

    tokens: np.ndarray
    """`B n_best n_tokens` ids; the padding token after an end."""
    scores: np.ndarray
    """`B n_best`: log-probability / length^length_penalty; -inf where there are fewer sequences than asked for."""


def make_beam(
    beam: BeamConfig, eos: Ends, pad: int | None, *, vocab_size: int, n_tokens: int, size: int
) -> tuple[BeamNumbers, BeamShape]:
    """Convert the configuration to arrays and sizes, for n_tokens <= size; InputError if it does not fit the vocabulary."""
    check_kind("beam", beam, BeamConfig, "a BeamConfig")
    check_length(n_tokens, least=1)
    if beam.width > vocab_size:
        raise InputError(f"width = {beam.width} of the beam is more than the vocabulary of {vocab_size}; give a smaller beam")
    rules = make_rules(beam, eos, pad, vocab_size, n_tokens, size)
    at_greatest = beam.early_stopping == "never" and beam.length_penalty > 0
    numbers = BeamNumbers(real(beam.length_penalty), np.bool_(beam.early_stopping is True), np.bool_(at_greatest), rules)
    candidates = max(2, 1 + len(set(end_tokens(eos)))) * beam.width
    return numbers, BeamShape(beam.width, beam.n_best, beam.no_repeat_ngram, candidates)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Beams:
    """State that the search carries from token to token; after an end, every token is the padding token."""

    history: Array
    """B*W H: tokens read before the first choice, right-aligned; -1 where a row has fewer."""
    length: Array
    """Number of tokens chosen so far, a scalar."""
    tokens: Array
    """B W X: running sequences, likeliest first."""
    sums: Array
    """B W: log-probabilities of the running sequences."""
    ended: Array
    """B W X: best sequences that have ended."""
    scores: Array
    """B W: scores of the ended sequences; -inf where there is none yet."""
    done: Array
    """B: True if a source is finished."""
    broken: Array
    """Token at which the logits were first NaN, a scalar."""
    logits: Array
    """B*W V: logits of the next token."""
    cache: Any
    """Cache of the step: B*W rows, rearranged by `take`."""


def beam_search(
    step: Step,
    logits: Float[Array, "B V"],
    cache: Any,
    history: Int[Array, "B H"],
    numbers: BeamNumbers,
    end: Int[Array, ""],
    size: int,
    shape: BeamShape,
) -> tuple[Int[Array, "B n X"], Float[Array, "B n"], Int[Array, ""]]:
    """Find the `n_best` sequences of at most `end` <= `size` tokens; return them, their scores, and where the logits broke.

    `logits` and `cache` are those of B rows before the first token; `step` is called with B*W rows, those of a source side by
    side. Every step ranks the W V continuations; of two that are equally likely, the one of the likelier parent or the lower id
    comes first. A sequence ends where an end token is among the W best continuations, and every one at the greatest length; the
    W best others go on. A source is finished with W ended sequences: at once, or when the likeliest running sequence would not
    beat them at its present length, or at the greatest one.
    """
    batch, width = logits.shape[0], shape.width
    rows = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), width)
    empty = jnp.full((batch, width, size), numbers.rules.pad)
    only_first = jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf).astype(wide(logits).dtype)
    sums = jnp.broadcast_to(only_first, (batch, width))
    beams = Beams(
        history[rows],
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
        return _advance(step, now, numbers, end, shape)

    beams = jax.lax.while_loop(lambda now: (now.length < end) & ~now.done.all(), one, beams)
    return beams.ended[:, : shape.n_best], beams.scores[:, : shape.n_best], beams.broken


def score(sums: Float[Array, "..."], length: Int[Array, ""], penalty: Float[Array, ""] | np.generic) -> Float[Array, "..."]:
    """log-probability / length^penalty, as in fairseq and Marian (Wu et al. 2016, equation 14, is another form)."""
    return sums / jnp.asarray(length, sums.dtype) ** jnp.asarray(penalty, sums.dtype)


def _advance(step: Step, now: Beams, numbers: BeamNumbers, end: Array, shape: BeamShape) -> Beams:
    """Extend every sequence by one token."""
    (batch, width, size), rules, penalty = now.tokens.shape, numbers.rules, numbers.length_penalty
    chances = jax.nn.log_softmax(wide(now.logits), -1)
    allowed = constrain(chances, now.history, now.tokens.reshape(-1, size), now.length, rules, shape.ngram)
    vocab_size = chances.shape[-1]
    ways = (now.sums[..., None] + allowed.reshape(batch, width, -1)).reshape(batch, -1)
    sums, index = jax.lax.top_k(ways, min(shape.candidates, ways.shape[1]))
    parents, chosen = index // vocab_size, (index % vocab_size).astype(jnp.int32)
    tokens = jnp.take_along_axis(now.tokens, parents[..., None], 1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, chosen[..., None], now.length, axis=2)
    length = now.length + 1
    ends = jnp.asarray(rules.ends)[chosen] | (length == end)

    among_best = (jnp.arange(sums.shape[1]) < width)[None]
    new = jnp.where(ends & among_best & ~now.done[:, None], score(sums, length, penalty), -jnp.inf)
    scores, (ended,) = _best(jnp.concatenate([now.scores, new], 1), width, jnp.concatenate([now.ended, tokens], 1))
    sums, (tokens, parents, chosen) = _best(jnp.where(ends, -jnp.inf, sums), width, tokens, parents, chosen)

    reachable = score(sums[:, 0], jnp.where(numbers.at_greatest, end, length), penalty)
    finished = (scores[:, -1] > -jnp.inf) & (jnp.asarray(numbers.at_once) | (scores[:, -1] >= reachable))
    rows = (jnp.arange(batch, dtype=jnp.int32)[:, None] * width + parents).reshape(-1)
    logits, cache = step(chosen.reshape(-1), now.cache.take(rows))
    return Beams(
        now.history,
        length,
        tokens,
        sums,
        ended,
        scores,
        now.done | finished,
        first(now.broken, now.length, jnp.isnan(chances).reshape(batch, -1).any(-1) & ~now.done),
        logits,
        cache,
    )


def _best(values: Array, n: int, *arrays: Array) -> tuple[Array, list[Array]]:
    """Return the n largest values of each row, and the entries of `arrays` at their places."""
    values, place = jax.lax.top_k(values, n)
    return values, [jnp.take_along_axis(a, place[..., None] if a.ndim == 3 else place, 1) for a in arrays]


def hypotheses(found: tuple[Array, Array, Array], n_tokens: int, name: str) -> Hypotheses:
    """Copy the result to the host; NonFiniteError for logits that are NaN, InputError for a row without a sequence."""
    tokens, scores, broken = found
    check_broken(int(broken))
    result = Hypotheses(on_host(tokens)[:, :, :n_tokens], on_host(scores))
    if (none := np.flatnonzero(np.isneginf(result.scores[:, 0]))).size:
        raise InputError(
            f"the beam's rules leave no sequence for {name}[{none[0]}]; suppress fewer tokens, or allow repeated runs"
        )
    return result
