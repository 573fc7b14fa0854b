"""Likelihood of a target that is written already: all of its places in one call."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.config.settings import SamplingConfig
from jaxformer.decoding.prepare import bucket
from jaxformer.decoding.sampling import Rules, constrain, keep_top_k, make_rules
from jaxformer.models import EncoderDecoder
from jaxformer.runtime.jit import jit
from jaxformer.validation.arrays import Tokens


def log_probabilities(
    model: EncoderDecoder, source: Tokens, tokens: np.ndarray, sampling: SamplingConfig, *, start: list[int], eos: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probabilities of a target's tokens, and the probabilities `P V` of what follows each token of its start.

    `source` is one row. Log-probabilities are those of the tokens that the rules and `top_k` keep, without `temperature`; the
    probabilities are the model's own.
    """
    n, longest = len(tokens), model.config.context - len(start) + 1
    padded = np.zeros(min(bucket(n), longest), np.int32)
    padded[:n] = tokens
    rules = make_rules(sampling, eos, None, model.config.vocab_size, n, padded.size)
    given = jnp.asarray(start, jnp.int32), jnp.asarray(padded), rules, jnp.int32(sampling.top_k)
    found, first = _log_probabilities(model, jnp.asarray(source), *given, sampling.no_repeat_ngram)
    return np.asarray(found)[:n], np.asarray(first)


@partial(jit, work="write", static_argnames="ngram")
def _log_probabilities(
    model: EncoderDecoder,
    source: Array,
    start: Int[Array, " P"],
    tokens: Int[Array, " X"],
    rules: Rules,
    top_k: Int[Array, ""],
    ngram: int,
) -> tuple[Float[Array, " X"], Float[Array, "P V"]]:
    target = jnp.concatenate([start, tokens[:-1]])[None]
    logits = model.decode(target, model.encode(source))[0]

    def at(place: Array) -> Array:
        own = jax.lax.dynamic_index_in_dim(logits, start.size - 1 + place)
        allowed = constrain(own, start[None], tokens[None], place, rules, ngram)
        return jax.nn.log_softmax(keep_top_k(allowed, top_k), axis=-1)[0, tokens[place]]

    found = jax.lax.map(at, jnp.arange(tokens.size, dtype=jnp.int32))
    return found, jax.nn.softmax(logits[: start.size], axis=-1)
