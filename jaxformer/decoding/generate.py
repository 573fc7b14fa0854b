"""Text generation with a GPT: token by token, or by beam search."""

from dataclasses import replace
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding.beam import BeamNumbers, BeamShape, Hypotheses, beam_search, hypotheses, make_beam
from jaxformer.decoding.choose import Choice, Step, advance, begin, make_choice
from jaxformer.decoding.layout import lay_out
from jaxformer.decoding.prepare import (
    NONE,
    bucket,
    check_broken,
    check_crossing,
    check_length,
    check_outside_jit,
    check_stuck,
    check_valid,
    padded_left,
    padded_right,
)
from jaxformer.decoding.sampling import Ends
from jaxformer.errors import InputError
from jaxformer.models import GPT, Model
from jaxformer.nn.cache import KVCache, empty_cache
from jaxformer.nn.masks import padding_mask
from jaxformer.parallel.group import run_together
from jaxformer.parallel.placement import cut_cache, on_host
from jaxformer.pytree import n_bytes, take_layers_apart
from jaxformer.runtime.jit import jit
from jaxformer.validation.arrays import Tokens, as_array, check_values
from jaxformer.validation.inputs import check_tokens

CHEAP = 4
"""Ratio of weights to cache from which the cache is cheap to read: a quarter of the weights' bytes."""
SMALLEST_CAPACITY = 64


def generate(
    model: Model,
    prompt: Tokens,
    n_tokens: int | np.integer,
    sampling: SamplingConfig | None = None,
    *,
    key: PRNGKeyArray | None = None,
    eos: Ends = None,
    pad: int | None = None,
    valid: Tokens | None = None,
) -> np.ndarray:
    """Continue `B P` ids by `B n_tokens` ids; only the last `context` tokens are seen.

    The new ids alone are returned; `generate` of transformers returns the prompt before them. Without `sampling`, a key draws
    each token by its probability, and no key takes the likeliest. `valid` (`B P`, True = not padding) leaves out padding,
    wherever it stands. A row that chooses `eos`, or one of several, ends, and is filled up with `pad`, by default the (first)
    end token. Prompt and output lengths are rounded up to powers of two: nearby lengths share one compilation. While everything
    fits the context a cache makes each token one row of work; after that, a sliding window costs a full pass per token. Raises
    InputError for what the model cannot continue and for a missing key, NonFiniteError for logits that are NaN.
    """
    check_outside_jit(model, (prompt, n_tokens, key, eos, pad, valid))
    model, text, start, padding = _prepare(model, prompt, valid)
    n_tokens = check_length(n_tokens)
    check_crossing(model.config, int(start), n_tokens)
    size, vocab_size = bucket(n_tokens), model.config.vocab_size
    choice, ngram = make_choice(sampling, key, eos, pad, vocab_size=vocab_size, n_tokens=n_tokens, size=size)
    slides = int(start) + n_tokens > model.config.context
    given = model, text, start, padding, jnp.int32(n_tokens), choice, size, ngram, slides
    tokens, broken, stuck = run_together(_generate, *given)
    check_broken(int(broken))
    check_stuck(int(stuck))
    return on_host(tokens)[:, :n_tokens]


def generate_beam(
    model: Model,
    prompt: Tokens,
    n_tokens: int | np.integer,
    beam: BeamConfig = BeamConfig(),
    *,
    eos: Ends = None,
    pad: int | None = None,
    valid: Tokens | None = None,
) -> Hypotheses:
    """Find the likeliest continuations of `B P` ids by beam search; otherwise as `generate`.

    A search compares whole sequences, so there is no sliding window: more tokens than fit the context with the prompt are
    refused.
    """
    model, text, start, padding = _prepare(model, prompt, valid)
    n_tokens = check_length(n_tokens, least=1)
    check_crossing(model.config, int(start), n_tokens)
    room = model.config.context + 1 - int(start)
    if n_tokens > room:
        raise InputError(
            f"n_tokens = {n_tokens} after {start} of the prompt exceed the context of {model.config.context}, and a beam's "
            f"window does not slide; ask for at most {room}, or shorten the prompt"
        )
    size = bucket(n_tokens)
    numbers, shape = make_beam(beam, eos, pad, vocab_size=model.config.vocab_size, n_tokens=n_tokens, size=size)
    found = _generate_beam(model, text, start, padding, jnp.int32(n_tokens), numbers, size, shape)
    return hypotheses(found, n_tokens, "prompt")


def _prepare(model: Model, prompt: Tokens, valid: Tokens | None) -> tuple[GPT, Array, Array, Array]:
    """Check and pad the prompt's last `context` tokens; return model, tokens, their number, and each row's left padding."""
    if not isinstance(model, GPT):
        raise InputError(f"generate continues a GPT, and this is {type(model).__name__}; an EncoderDecoder translates")
    check_outside_jit(model, prompt)
    check_values(model.embed)
    context, prompt = model.config.context, np.asarray(as_array(prompt))
    check_tokens(prompt, model.config.vocab_size, longest=max(prompt.size, 1), name="prompt")
    text, padding = padded_left(prompt, check_valid(valid, prompt, "prompt"))
    padding = np.maximum(padding - max(text.shape[1] - context, 0), 0)
    text = text[:, -context:].astype(np.int32)
    wide = padded_right(text, min(bucket(text.shape[1]), context))
    return model, jnp.asarray(wide), jnp.int32(text.shape[1]), jnp.asarray(padding, jnp.int32)


def places(first: Array, n: int, padding: Int[Array, " B"]) -> Int[Array, "B n"]:
    """Positions of n tokens from `first` on; padding at the left takes up none."""
    return jnp.maximum(first + jnp.arange(n, dtype=jnp.int32)[None] - padding[:, None], 0)


def behind(padding: Int[Array, " B"], n: int) -> Array:
    """Mask of n keys that hides the first `padding` ones of each row."""
    return padding_mask(jnp.arange(n, dtype=jnp.int32)[None] >= padding[:, None])


def last(model: GPT, states: Float[Array, "B T D"], place: Array | int) -> Float[Array, "B V"]:
    """Return the logits at one place."""
    return model.read_out(jax.lax.dynamic_slice_in_dim(states, place, 1, axis=1))[:, 0]


def read(
    model: GPT, text: Int[Array, "B P"], start: Int[Array, ""], padding: Int[Array, " B"], rooms: list[int], width: int
) -> tuple[Step, Float[Array, "B V"], KVCache, Int[Array, "B P"]]:
    """Return a step for `width` rows per prompt, the first token's logits, the cache, and the tokens read, right-aligned after
    -1. The cache will grow to the last of its capacities `rooms`.
    """
    (batch, longest), capacity = text.shape, rooms[0]
    cache = cut_cache(empty_cache(model, batch, capacity))
    # Rotary angles may depend on the largest position: those behind the prompt, which no token sees, are none of its own.
    positions = jnp.minimum(places(jnp.int32(0), longest, padding), start - 1)
    states, cache = model.last_hidden_state(text, cache, mask=behind(padding, capacity), positions=positions)
    rows = jnp.repeat(padding, width)
    apart = lay_out(model, batch * width, rooms[-1] - longest)

    def step(tokens: Array, cache: KVCache) -> tuple[Array, KVCache | None]:
        positions = places(cache.length, 1, rows)
        states, after = apart.last_hidden_state(tokens[:, None], cache, mask=behind(rows, cache.capacity), positions=positions)
        return last(apart, states, 0), cut_cache(after)

    unread = (longest - start + padding)[:, None]
    history = jnp.where(jnp.arange(longest, dtype=jnp.int32)[None] >= unread, jnp.roll(text, longest - start, axis=1), NONE)
    return step, last(model, states, start - 1), replace(cast(KVCache, cache), length=start), history


@partial(jit, work="write", static_argnames=("size", "ngram", "slides"))
def _generate(
    model: GPT,
    text: Int[Array, "B P"],
    start: Int[Array, ""],
    padding: Int[Array, " B"],
    end: Int[Array, ""],
    choice: Choice,
    size: int,
    ngram: int,
    slides: bool,
) -> tuple[Int[Array, "B X"], Int[Array, ""], Int[Array, ""]]:
    """Choose at most `size` tokens after text[:, :start], whose first `padding` are padding; return where logits broke or rules
    left none.
    """
    context = model.config.context
    rooms = capacities(model, text.shape[0], text.shape[1], min(text.shape[1] + size, context))
    step, logits, cache, history = read(model, text, start, padding, rooms, width=1)
    progress = begin(logits, cache, history, size, choice.rules)
    for room in rooms:
        progress = replace(progress, cache=progress.cache.grow(room))
        progress = advance(step, progress, jnp.minimum(end, room - start), choice, ngram)
    if slides:
        whole = jnp.concatenate([text, jnp.zeros_like(progress.tokens)], 1)
        whole = jax.lax.dynamic_update_slice_in_dim(whole, progress.tokens, start, axis=1)
        window = jax.lax.dynamic_slice_in_dim(whole, start + progress.length - context, context, axis=1)
        progress = advance(with_window(model), replace(progress, cache=(window, padding)), end, choice, ngram)
    return progress.tokens, progress.broken, progress.stuck


def capacities(model: GPT, batch: int, least: int, most: int) -> list[int]:
    """Return the capacities to which a cache grows while it is filled; the last is `most`.

    Every token reads the cache's whole capacity. While that is little beside the weights, which are read too, a smaller cache
    gains nothing, and each capacity costs a compilation.
    """
    token = n_bytes(empty_cache(model, batch, 1))
    cheap = n_bytes(model) // (CHEAP * token)
    rooms = [most]
    while rooms[0] > max(cheap, least, SMALLEST_CAPACITY):
        rooms.insert(0, max(rooms[0] // 2, least))
    return rooms


def with_window(model: GPT) -> Step:
    """Return a step beyond the context: a sliding window of the last `context` tokens, at new positions, in a full pass."""
    context, apart = model.config.context, take_layers_apart(model)

    def step(chosen: Array, window: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        seen, padding = jnp.concatenate([window[0][:, 1:], chosen[:, None]], 1), jnp.maximum(window[1] - 1, 0)
        positions = places(jnp.int32(0), context, padding)
        states, _ = apart.last_hidden_state(seen, None, mask=behind(padding, context), positions=positions)
        return last(apart, states, context - 1), (seen, padding)

    return step


@partial(jit, work="write", static_argnames=("size", "shape"))
def _generate_beam(
    model: GPT,
    text: Int[Array, "B P"],
    start: Int[Array, ""],
    padding: Int[Array, " B"],
    end: Int[Array, ""],
    numbers: BeamNumbers,
    size: int,
    shape: BeamShape,
) -> tuple[Int[Array, "B n X"], Float[Array, "B n"], Int[Array, ""]]:
    capacity = min(text.shape[1] + size, model.config.context)
    step, logits, cache, history = read(model, text, start, padding, [capacity], shape.width)
    return beam_search(step, logits, cache, history, numbers, end, size, shape)
