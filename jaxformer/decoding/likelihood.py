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
    n, size = len(tokens), min(bucket(len(tokens)), model.config.context - len(start) + 1)
    target = np.zeros(len(start) + size, np.int32)
    target[: len(start) + n] = [*start, *tokens]
    rules = make_rules(sampling, eos, None, model.config.vocab_size, n, size)
    given = jnp.asarray(source), jnp.asarray(target), rules, jnp.int32(sampling.top_k)
    found, first = _log_probabilities(model, *given, (len(start), sampling.no_repeat_ngram))
    return np.asarray(found)[:n], np.asarray(first)


@partial(jit, work="write", static_argnames="lengths")
def _log_probabilities(
    model: EncoderDecoder,
    source: Array,
    target: Int[Array, " _"],
    rules: Rules,
    top_k: Int[Array, ""],
    lengths: tuple[int, int],
) -> tuple[Float[Array, " X"], Float[Array, "P V"]]:
    """Do it by the lengths of the target's start, and of the runs that may not repeat."""
    n_start, ngram = lengths
    start, tokens = jnp.split(target, [n_start])
    logits = model.decode(target[None, :-1], model.encode(source))[0]

    def at(place: Array) -> Array:
        own = jax.lax.dynamic_index_in_dim(logits, n_start - 1 + place)
        allowed = constrain(own, start[None], tokens[None], place, rules, ngram)
        return jax.nn.log_softmax(keep_top_k(allowed, top_k), axis=-1)[0, tokens[place]]

    found = jax.lax.map(at, jnp.arange(tokens.size, dtype=jnp.int32))
    return found, jax.nn.softmax(logits[:n_start], axis=-1)
