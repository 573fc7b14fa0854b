"""Continue a prompt: one compiled program, no Python per token."""

from dataclasses import replace
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.checks import check_size
from jaxformer.decoding.sampling import Number, next_tokens
from jaxformer.errors import InputError
from jaxformer.inputs import check_tokens
from jaxformer.models.gpt import GPT
from jaxformer.nn.cache import KVCache, empty_cache
from jaxformer.settings import SamplingConfig

SMALLEST_BUCKET = 16
MOST_TOKENS = 2**20
"""A longer text is generated piece by piece."""


def generate(
    model: GPT, prompt: np.ndarray, n_tokens: int, key: PRNGKeyArray, sampling: SamplingConfig = SamplingConfig()
) -> np.ndarray:
    """`B P` ids -> the `B n_tokens` ids that follow; only the last `context` tokens are seen.

    Prompt and output lengths are rounded up to buckets, so nearby lengths share one compilation. While everything fits the
    context a cache makes each token one row of work; after that the window slides and each token costs a full pass.
    Raises InputError for ids the model does not have.
    """
    check_size("n_tokens", n_tokens, least=0)
    if n_tokens > MOST_TOKENS:
        raise InputError(f"n_tokens = {n_tokens} is more than {MOST_TOKENS} at once; generate piece by piece")
    context, prompt = model.config.context, np.asarray(prompt)
    check_tokens(prompt, model.config.vocab_size, longest=max(prompt.size, 1), name="prompt")
    seen = np.asarray(prompt[:, -context:], np.int32)
    width = min(_bucket(seen.shape[1]), context)
    padded = np.zeros((len(seen), width + _bucket(n_tokens)), np.int32)
    padded[:, : seen.shape[1]] = seen
    start, end = np.int32(seen.shape[1]), np.int32(seen.shape[1] + n_tokens)
    numbers = np.float32(sampling.temperature), np.int32(sampling.top_k), np.float32(sampling.top_p)
    tokens = _generate(model, padded, start, end, key, numbers, width)
    return np.asarray(tokens)[:, start:end]


def _bucket(n: int) -> int:
    """The next power of two."""
    return max(SMALLEST_BUCKET, 1 << (n - 1).bit_length()) if n else SMALLEST_BUCKET


@partial(jax.jit, static_argnames="width")
def _generate(
    model: GPT,
    tokens: Int[Array, "B X"],
    start: Int[Array, ""],
    end: Int[Array, ""],
    key: PRNGKeyArray,
    sampling: tuple[Number, Number, Number],
    width: int,
) -> Int[Array, "B X"]:
    """tokens[:, start:end] filled in; the prompt is tokens[:, :start], of which `width` is the bucket."""
    context = model.config.context

    def append(tokens, length, logits):
        chosen = next_tokens(logits, jax.random.fold_in(key, length), *sampling)
        return jax.lax.dynamic_update_slice_in_dim(tokens, chosen[:, None], length, axis=1), length + 1, chosen

    def logits_at(states, place) -> Float[Array, "B V"]:
        return model.read_out(jax.lax.dynamic_slice_in_dim(states, place, 1, axis=1))[:, 0]

    def with_cache(carry):
        tokens, length, logits, cache = carry
        tokens, length, chosen = append(tokens, length, logits)
        states, cache = model.states(chosen[:, None], cache)
        return tokens, length, logits_at(states, 0), cache

    def with_window(carry):
        tokens, length, logits = carry
        tokens, length, _ = append(tokens, length, logits)
        window = jax.lax.dynamic_slice_in_dim(tokens, length - context, context, axis=1)
        states, _ = model.states(window, None)
        return tokens, length, logits_at(states, context - 1)

    cache = empty_cache(model.config, tokens.shape[0], context, model.embed.token.table.dtype)
    states, cache = model.states(tokens[:, :width], cache)
    cache = replace(cast(KVCache, cache), length=start)
    carry = tokens, start, logits_at(states, start - 1), cache
    tokens, length, logits, _ = jax.lax.while_loop(lambda c: c[1] < jnp.minimum(end, context), with_cache, carry)
    if tokens.shape[1] <= context:
        return tokens
    return jax.lax.while_loop(lambda c: c[1] < end, with_window, (tokens, length, logits))[0]
