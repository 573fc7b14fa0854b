"""Choose token after token in one compiled program: the loop, which knows no model, and how a GPT continues a prompt."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.decoding.prepare import (
    NEVER,
    NONE,
    bucket,
    check_broken,
    check_id,
    check_length,
    check_valid,
    padded_left,
    padded_right,
)
from jaxformer.decoding.sampling import Number, next_tokens, numbers
from jaxformer.errors import InputError
from jaxformer.inputs import check_tokens
from jaxformer.models import GPT, Model
from jaxformer.models.inputs import Tokens
from jaxformer.nn.cache import KVCache, empty_cache
from jaxformer.nn.masks import padding_mask
from jaxformer.settings import SamplingConfig

Step = Callable[[Int[Array, " B"], Any], tuple[Float[Array, "B V"], Any]]
"""step(tokens, cache) -> logits of the token after them, and the cache that holds them."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Progress:
    """All that the loop carries from token to token."""

    tokens: Array
    """B X: what was chosen; the end token behind a row's end."""
    length: Array
    """How many were chosen, a scalar."""
    logits: Array
    """B V: of the next one."""
    seen: Array
    """B V: which tokens a row has had."""
    ended: Array
    """B: which rows are at their end."""
    broken: Array
    """At which token the logits were first NaN, a scalar."""
    cache: Any
    """Whatever the step remembers."""


def begin(logits: Float[Array, "B V"], cache: Any, seen: Bool[Array, "B V"], size: int, eos: Int[Array, ""]) -> Progress:
    """Before the first of at most `size` tokens."""
    batch = logits.shape[0]
    tokens = jnp.full((batch, size), jnp.maximum(eos, 0))
    return Progress(tokens, jnp.int32(0), logits, seen, jnp.zeros(batch, bool), jnp.int32(NEVER), cache)


def advance(
    step: Step, progress: Progress, end: Int[Array, ""], key: PRNGKeyArray, sampling: tuple[Number, ...], eos: Int[Array, ""]
) -> Progress:
    """Choose tokens until there are `end` of them, or every row has chosen `eos`."""

    def one(now: Progress) -> Progress:
        chosen = next_tokens(now.logits, now.seen, jax.random.fold_in(key, now.length), *sampling)
        chosen = jnp.where(now.ended, eos, chosen)
        sane = now.ended | ~jnp.isnan(now.logits).any(-1)
        logits, cache = step(chosen, now.cache)
        return Progress(
            jax.lax.dynamic_update_slice_in_dim(now.tokens, chosen[:, None], now.length, axis=1),
            now.length + 1,
            logits,
            now.seen.at[jnp.arange(chosen.shape[0], dtype=jnp.int32), chosen].set(True),
            now.ended | (chosen == eos),
            jnp.where(sane.all(), now.broken, jnp.minimum(now.broken, now.length)),
            cache,
        )

    return jax.lax.while_loop(lambda now: (now.length < end) & ~now.ended.all(), one, progress)


def generate(
    model: Model,
    prompt: Tokens,
    n_tokens: int,
    key: PRNGKeyArray,
    sampling: SamplingConfig = SamplingConfig(),
    *,
    valid: Tokens | None = None,
    eos: int | None = None,
) -> np.ndarray:
    """`B P` ids -> the `B n_tokens` ids that follow; only the last `context` tokens are seen.

    `valid` (`B P`, True = no padding) leaves out padding, wherever it stands. A row that chooses `eos` ends, and is filled up
    with it. Prompt and output lengths are rounded up to powers of two, and nearby lengths share one compilation. While
    everything fits the context a cache makes each token one row of work; after that the window slides and each token costs a
    full pass. Raises InputError for what the model cannot continue, NonFiniteError for logits that are NaN.
    """
    if not isinstance(model, GPT):
        raise InputError(f"generate continues a GPT, and this is {type(model).__name__}; an EncoderDecoder translates")
    check_length(n_tokens)
    context, vocab_size, prompt = model.config.context, model.config.vocab_size, np.asarray(prompt)
    check_tokens(prompt, vocab_size, longest=max(prompt.size, 1), name="prompt")
    if eos is not None:
        check_id("eos", eos, vocab_size)
    text, padding = padded_left(prompt, check_valid(valid, prompt, "prompt"))
    padding = np.maximum(padding - max(text.shape[1] - context, 0), 0)
    text = text[:, -context:].astype(np.int32)
    start, text = np.int32(text.shape[1]), padded_right(text, min(bucket(text.shape[1]), context))
    end = NONE if eos is None else np.int32(eos)
    tokens, broken = _generate(model, text, start, padding, np.int32(n_tokens), key, numbers(sampling), end, bucket(n_tokens))
    check_broken(int(broken))
    return np.asarray(tokens)[:, :n_tokens]


@partial(jax.jit, static_argnames="size")
def _generate(
    model: GPT,
    text: Int[Array, "B P"],
    start: Int[Array, ""],
    padding: Int[Array, " B"],
    end: Int[Array, ""],
    key: PRNGKeyArray,
    sampling: tuple[Number, ...],
    eos: Int[Array, ""],
    size: int,
) -> tuple[Int[Array, "B X"], Int[Array, ""]]:
    """At most `size` tokens behind text[:, :start], whose first `padding` are none; and where the logits broke."""
    context, batch = model.config.context, text.shape[0]

    def places(first: Array, n: int, padding: Array) -> Array:
        return jnp.maximum(first + jnp.arange(n, dtype=jnp.int32)[None] - padding[:, None], 0)

    def real(n: int, padding: Array) -> Array:
        return padding_mask(jnp.arange(n, dtype=jnp.int32)[None] >= padding[:, None])

    def last(states: Array, place: Array | int) -> Array:
        return model.read_out(jax.lax.dynamic_slice_in_dim(states, place, 1, axis=1))[:, 0]

    def with_cache(chosen: Array, cache: KVCache) -> tuple[Array, KVCache | None]:
        positions = places(cache.length, 1, padding)
        states, cache_after = model.states(chosen[:, None], cache, mask=real(context, padding), positions=positions)
        return last(states, 0), cache_after

    def with_window(chosen: Array, window: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        seen, padding = jnp.concatenate([window[0][:, 1:], chosen[:, None]], 1), jnp.maximum(window[1] - 1, 0)
        states, _ = model.states(seen, None, mask=real(context, padding), positions=places(jnp.int32(0), context, padding))
        return last(states, context - 1), (seen, padding)

    cache = empty_cache(model, batch, context)
    first = places(jnp.int32(0), text.shape[1], padding)
    states, cache = model.states(text, cache, mask=real(context, padding), positions=first)
    place = jnp.arange(text.shape[1], dtype=jnp.int32)[None]
    here = (place >= padding[:, None]) & (place < start)
    seen = jnp.zeros((batch, model.config.vocab_size), bool).at[jnp.arange(batch, dtype=jnp.int32)[:, None], text].max(here)
    progress = begin(last(states, start - 1), replace(cast(KVCache, cache), length=start), seen, size, eos)
    progress = advance(with_cache, progress, jnp.minimum(end, context - start), key, sampling, eos)
    if text.shape[1] + size > context:
        whole = jnp.concatenate([text, jnp.zeros_like(progress.tokens)], 1)
        whole = jax.lax.dynamic_update_slice_in_dim(whole, progress.tokens, start, axis=1)
        window = jax.lax.dynamic_slice_in_dim(whole, start + progress.length - context, context, axis=1)
        progress = advance(with_window, replace(progress, cache=(window, padding)), end, key, sampling, eos)
    return progress.tokens, progress.broken
