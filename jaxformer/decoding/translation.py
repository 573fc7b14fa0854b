"""From a source to a target: an encoder-decoder's tokens, chosen one by one or searched for by a beam."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.decoding.beam import BeamNumbers, beam_numbers, beam_search
from jaxformer.decoding.generate import Step, advance, begin
from jaxformer.decoding.prepare import bucket, check_broken, check_id, check_length, check_valid, moved_right, padded_right
from jaxformer.decoding.sampling import GREEDY, Number, numbers
from jaxformer.errors import InputError
from jaxformer.inputs import check_tokens
from jaxformer.models import EncoderDecoder, Model
from jaxformer.models.inputs import Tokens, known
from jaxformer.nn.cache import KVCache, empty_cache
from jaxformer.nn.masks import padding_mask
from jaxformer.settings import BeamConfig, SamplingConfig


class Hypotheses(NamedTuple):
    """What a beam search found, the best first."""

    tokens: np.ndarray
    """`B n_best n_tokens` ids; the end token behind an end."""
    scores: np.ndarray
    """`B n_best`: log-probability / length^length_penalty; -inf where there are fewer sequences than asked for."""


def translate(
    model: Model,
    source: Tokens,
    n_tokens: int,
    *,
    start: int,
    eos: int,
    valid: Tokens | None = None,
    sampling: SamplingConfig = GREEDY,
    key: PRNGKeyArray | None = None,
) -> np.ndarray:
    """`B S` source ids -> `B n_tokens` target ids behind `start`, greedily unless `sampling` and a key say otherwise.

    A row that chooses `eos` ends, and is filled up with it. `valid` (`B S`, True = no padding) leaves out padding, wherever it
    stands. Source and output lengths are rounded up to powers of two, and nearby lengths share one compilation. Raises
    InputError for what the model cannot read, NonFiniteError for logits that are NaN.
    """
    if key is None and sampling.temperature:
        raise InputError(f"temperature = {sampling.temperature} draws at random; give a key, or temperature 0")
    model, source, valid = _prepare(model, source, valid, n_tokens, start, eos)
    size = min(bucket(n_tokens), model.config.context)
    tokens, broken = _translate(
        model,
        source,
        valid,
        jnp.int32(start),
        jnp.int32(n_tokens),
        jax.random.key(0) if key is None else key,
        numbers(sampling),
        jnp.int32(eos),
        size,
    )
    check_broken(int(broken))
    return np.asarray(tokens)[:, :n_tokens]


def translate_beam(
    model: Model,
    source: Tokens,
    n_tokens: int,
    beam: BeamConfig = BeamConfig(),
    *,
    start: int,
    eos: int,
    valid: Tokens | None = None,
) -> Hypotheses:
    """The likeliest targets of `B S` source ids that a beam finds; otherwise as `translate`."""
    model, source, valid = _prepare(model, source, valid, n_tokens, start, eos)
    vocab_size = model.config.vocab_size
    if beam.width > vocab_size:
        raise InputError(f"width = {beam.width} of the beam is more than the vocabulary of {vocab_size}; give a smaller beam")
    for token in beam.suppressed:
        check_id("suppressed token", token, vocab_size)
    for place, token in beam.forced:
        check_id("forced token", token, vocab_size)
        if place >= n_tokens:
            raise InputError(f"forced place {place} lies behind the {n_tokens} tokens asked for; ask for more, or leave it out")
    size = min(bucket(n_tokens), model.config.context)
    rules = beam_numbers(beam, vocab_size, size)
    shape = beam.width, beam.n_best, beam.no_repeat_ngram
    tokens, scores, broken = _translate_beam(
        model, source, valid, jnp.int32(start), jnp.int32(n_tokens), rules, jnp.int32(eos), size, shape
    )
    check_broken(int(broken))
    scores = np.asarray(scores)
    if (none := np.flatnonzero(np.isneginf(scores[:, 0]))).size:
        raise InputError(
            f"the beam's rules leave no target for source[{none[0]}]; suppress fewer tokens, or allow repeated runs"
        )
    return Hypotheses(np.asarray(tokens)[:, :, :n_tokens], scores)


def _prepare(
    model: Model, source: Tokens, valid: Tokens | None, n_tokens: int, start: int, eos: int
) -> tuple[EncoderDecoder, Array, Array]:
    """The source and what of it is no padding, both checked, and filled up to a bucket."""
    if not isinstance(model, EncoderDecoder):
        raise InputError(f"only an EncoderDecoder translates, and this is {type(model).__name__}; a GPT generates")
    config, source = model.config, np.asarray(known(source))
    check_length(n_tokens, config.context)
    check_tokens(source, config.source_ids, config.source.context, name="source")
    check_id("start", start, config.vocab_size)
    check_id("eos", eos, config.vocab_size)
    source, valid = moved_right(source, check_valid(valid, source, "source"))
    width = min(bucket(source.shape[1]), config.source.context)
    return model, jnp.asarray(padded_right(source.astype(np.int32), width)), jnp.asarray(padded_right(valid, width))


def read(
    model: EncoderDecoder, source: Int[Array, "B S"], valid: Bool[Array, "B S"], start: Int[Array, ""], size: int, width: int
) -> tuple[Step, Float[Array, "B V"], KVCache | None]:
    """A step for `width` rows a source, the first token's logits, and the cache: what encodes the source is done once."""
    batch, mask = source.shape[0], padding_mask(valid)
    memory = model.encode(source, mask=mask)
    remembered = model.remember(memory)
    cache = empty_cache(model, batch, size)
    logits, cache = model.extend(jnp.full((batch, 1), start), cache, remembered, memory_mask=mask)
    rows = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), width)
    remembered = jax.tree.map(lambda leaf: leaf[:, rows], remembered)

    def step(tokens: Array, cache: KVCache) -> tuple[Array, KVCache | None]:
        logits, after = model.extend(tokens[:, None], cache, remembered, memory_mask=mask[rows])
        return logits[:, 0], after

    return step, logits[:, 0], cache


@partial(jax.jit, static_argnames="size")
def _translate(
    model: EncoderDecoder,
    source: Int[Array, "B S"],
    valid: Bool[Array, "B S"],
    start: Int[Array, ""],
    end: Int[Array, ""],
    key: PRNGKeyArray,
    sampling: tuple[Number, ...],
    eos: Int[Array, ""],
    size: int,
) -> tuple[Int[Array, "B X"], Int[Array, ""]]:
    step, logits, cache = read(model, source, valid, start, size, width=1)
    progress = begin(logits, cache, jnp.zeros(logits.shape, bool), size, eos)
    progress = advance(step, progress, end, key, sampling, eos)
    return progress.tokens, progress.broken


@partial(jax.jit, static_argnames=("size", "shape"))
def _translate_beam(
    model: EncoderDecoder,
    source: Int[Array, "B S"],
    valid: Bool[Array, "B S"],
    start: Int[Array, ""],
    end: Int[Array, ""],
    rules: BeamNumbers,
    eos: Int[Array, ""],
    size: int,
    shape: tuple[int, int, int],
) -> tuple[Int[Array, "B W X"], Float[Array, "B W"], Int[Array, ""]]:
    width, n_best, ngram = shape
    step, logits, cache = read(model, source, valid, start, size, width)
    return beam_search(step, logits, cache, rules, end, eos, size=size, width=width, n_best=n_best, ngram=ngram)
