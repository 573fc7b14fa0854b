"""Translation with an encoder-decoder: target tokens are chosen one by one, or by beam search."""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding.beam import BeamNumbers, BeamShape, Hypotheses, beam_search, hypotheses, make_beam
from jaxformer.decoding.choose import Choice, Step, advance, begin, make_choice
from jaxformer.decoding.layout import lay_out
from jaxformer.decoding.prepare import (
    bucket,
    check_broken,
    check_id,
    check_length,
    check_outside_jit,
    check_stuck,
    check_valid,
    moved_right,
    padded_right,
)
from jaxformer.decoding.sampling import Ends
from jaxformer.errors import InputError
from jaxformer.models import EncoderDecoder, Model
from jaxformer.nn.cache import KVCache, empty_cache
from jaxformer.nn.masks import padding_mask
from jaxformer.parallel.group import run_together
from jaxformer.parallel.placement import cut_cache, on_host
from jaxformer.runtime.jit import jit
from jaxformer.validation.arrays import Tokens, as_array, check_frames, check_values
from jaxformer.validation.inputs import check_tokens

Start = int | Sequence[int]
"""Tokens that every target begins with, which are not part of what is written."""


def translate(
    model: Model,
    source: Tokens,
    n_tokens: int | np.integer,
    sampling: SamplingConfig | None = None,
    *,
    start: Start,
    eos: Ends,
    pad: int | None = None,
    valid: Tokens | None = None,
    key: PRNGKeyArray | None = None,
) -> np.ndarray:
    """Translate `B S` source ids to `B n_tokens` target ids after `start`, one token or several.

    Of a model with `source_features`, the source is frames `B _ M`, which have no padding. Without `sampling`, a key draws each
    token by its probability, and no key takes the likeliest. A row that chooses `eos`, or one of several, ends, and is filled
    up with `pad`, by default the (first) end token; with None no row ends. `valid` (`B S`, True = not padding) leaves out
    padding, wherever it stands. Lengths of ids are rounded up to powers of two: nearby lengths share one compilation. Raises
    InputError for what the model cannot read and for a missing key, NonFiniteError for logits that are NaN.
    """
    model, source, valid, started, n_tokens, size = _prepare(model, source, valid, n_tokens, start)
    vocab_size = model.config.vocab_size
    choice, ngram = make_choice(sampling, key, eos, pad, vocab_size=vocab_size, n_tokens=n_tokens, size=size)
    given = model, source, valid, started, jnp.int32(n_tokens), choice, size, ngram
    tokens, broken, stuck = run_together(_translate, *given)
    check_broken(int(broken))
    check_stuck(int(stuck))
    return on_host(tokens)[:, :n_tokens]


def translate_beam(
    model: Model,
    source: Tokens,
    n_tokens: int | np.integer,
    beam: BeamConfig = BeamConfig(),
    *,
    start: Start,
    eos: Ends,
    pad: int | None = None,
    valid: Tokens | None = None,
) -> Hypotheses:
    """Find the likeliest targets of `B S` source ids by beam search; otherwise as `translate`."""
    model, source, valid, started, n_tokens, size = _prepare(model, source, valid, n_tokens, start)
    numbers, shape = make_beam(beam, eos, pad, vocab_size=model.config.vocab_size, n_tokens=n_tokens, size=size)
    found = _translate_beam(model, source, valid, started, jnp.int32(n_tokens), numbers, size, shape)
    return hypotheses(found, n_tokens, "source")


def _prepare(
    model: Model, source: Tokens, valid: Tokens | None, n_tokens: int | np.integer, start: Start
) -> tuple[EncoderDecoder, Array, Array | None, Array, int, int]:
    """Check the source, its validity and the start; return them as arrays, with the target's length and its bucket."""
    if not isinstance(model, EncoderDecoder):
        raise InputError(f"only an EncoderDecoder translates, and this is {type(model).__name__}; a GPT generates")
    check_outside_jit(model, source)
    check_values(model.embed)
    config = model.config
    started = [*start] if isinstance(start, Sequence) else [start]
    if not started:
        raise InputError("start = () is no token; give the token, or the tokens, that every target begins with")
    for token in started:
        check_id("start", token, config.vocab_size)
    longest = config.context - len(started) + 1
    n_tokens = check_length(n_tokens, longest)
    size, started = min(bucket(n_tokens), longest), jnp.asarray(started, jnp.int32)
    return model, *_prepare_source(model, np.asarray(as_array(source)), valid), started, n_tokens, size


def _prepare_source(model: EncoderDecoder, source: np.ndarray, valid: Tokens | None) -> tuple[Array, Array | None]:
    """Check the source and its validity; pad ids to a bucket, and leave frames, which have no padding, as they are."""
    config = model.config
    if model.stem is not None:
        if valid is not None:
            raise InputError("valid is given for a source of frames, which has no padding; leave it out")
        return jnp.asarray(check_frames(source, config.source_features, config.source.context)), None
    check_tokens(source, config.source_ids, config.source.context, name="source")
    source, valid = moved_right(source, check_valid(valid, source, "source"))
    width = min(bucket(source.shape[1]), config.source.context)
    return jnp.asarray(padded_right(source.astype(np.int32), width)), jnp.asarray(padded_right(valid, width))


def read(
    model: EncoderDecoder, source: Array, valid: Bool[Array, "B S"] | None, start: Int[Array, " P"], size: int, width: int
) -> tuple[Step, Float[Array, "B V"], KVCache | None, Int[Array, "B P"]]:
    """Encode the source once; return a step for `width` rows per source, the first token's logits, the cache, and the start."""
    batch, mask = source.shape[0], None if valid is None else padding_mask(valid)
    memory = model.encode(source, mask=mask)
    remembered = model.remember(memory)
    cache = cut_cache(empty_cache(model, batch, start.size - 1 + size))
    started = jnp.broadcast_to(start, (batch, start.size))
    logits, cache = model.extend(started, cache, remembered, memory_mask=mask)
    rows = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), width)
    remembered, apart = remembered.take(rows), lay_out(model, batch * width, size)
    mask = None if mask is None else mask[rows]

    def step(tokens: Array, cache: KVCache) -> tuple[Array, KVCache | None]:
        logits, after = apart.extend(tokens[:, None], cache, remembered, memory_mask=mask)
        return logits[:, 0], cut_cache(after)

    return step, logits[:, -1], cache, started


@partial(jit, work="write", static_argnames=("size", "ngram"))
def _translate(
    model: EncoderDecoder,
    source: Array,
    valid: Bool[Array, "B S"] | None,
    start: Int[Array, " P"],
    end: Int[Array, ""],
    choice: Choice,
    size: int,
    ngram: int,
) -> tuple[Int[Array, "B X"], Int[Array, ""], Int[Array, ""]]:
    step, logits, cache, started = read(model, source, valid, start, size, width=1)
    progress = advance(step, begin(logits, cache, started, size, choice.rules), end, choice, ngram)
    return progress.tokens, progress.broken, progress.stuck


@partial(jit, work="write", static_argnames=("size", "shape"))
def _translate_beam(
    model: EncoderDecoder,
    source: Array,
    valid: Bool[Array, "B S"] | None,
    start: Int[Array, " P"],
    end: Int[Array, ""],
    numbers: BeamNumbers,
    size: int,
    shape: BeamShape,
) -> tuple[Int[Array, "B n X"], Float[Array, "B n"], Int[Array, ""]]:
    step, logits, cache, started = read(model, source, valid, start, size, shape.width)
    return beam_search(step, logits, cache, started, numbers, end, size, shape)
