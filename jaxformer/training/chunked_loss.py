"""Chunked cross-entropy of hidden states and a read-out, for vocabularies whose logits do not fit into memory at once.

The PyTorch twin holds all logits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.config.settings import IGNORE_INDEX
from jaxformer.models import GPT, EncoderDecoder
from jaxformer.nn.precision import wide, wide_dtype
from jaxformer.training.losses import cross_entropy

MOST_LOGITS = 2**24
"""Most logits held at once: 64 MiB in float32. A smaller number makes more passes over the read-out's gradient, which is as
large.
"""

ChunkLoss = Callable[[PyTree, Array, Array], tuple[Array, Array]]
"""Function loss(weights, states, targets) -> (total, normaliser) of one chunk."""


def read_out_cross_entropy(
    model: GPT | EncoderDecoder, states: Float[Array, "B T D"], targets: Int[Array, "B T"], **rules: Any
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute `cross_entropy(model.read_out(states), targets, **rules)` in the memory of at most MOST_LOGITS logits.

    Up to that many, and with `class_weights`, this is the plain expression. More logits are computed in chunks of rows, each
    with its own gradient, so that no logit is kept or recomputed for the backward pass; there is no forward-mode derivative
    then.
    """
    chunks = -(-targets.size * model.config.vocab_size // MOST_LOGITS)
    if chunks <= 1 or rules.get("class_weights") is not None:
        return cross_entropy(model.read_out(states), targets, **rules)
    rows = -(-targets.size // chunks)
    more = rows * chunks - targets.size
    ignored = rules.get("ignore_index", IGNORE_INDEX)
    states = jnp.pad(states.reshape(-1, states.shape[-1]), ((0, more), (0, 0)))
    targets = jnp.pad(targets.reshape(-1), (0, more), constant_values=ignored)

    def loss(weights: PyTree, states: Array, targets: Array) -> tuple[Array, Array]:
        head, token = weights
        return cross_entropy(head(states, token), targets, **rules)

    weights = model.head, model.embed.token
    # Every chunk has rows of every sequence: on a mesh, each device holds a part of every chunk.
    states, targets = (x.reshape(rows, chunks, *x.shape[1:]).swapaxes(0, 1) for x in (states, targets))
    return _in_chunks(loss, weights, states, targets)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_chunks(loss: ChunkLoss, weights: PyTree, states: Array, targets: Array) -> tuple[Array, Array]:
    """Return the sums over all chunks, without a gradient."""
    totals, counts = jax.lax.map(lambda chunk: loss(weights, *chunk), (states, targets))
    return totals.sum(), counts.sum()


def _with_gradient(
    loss: ChunkLoss, weights: PyTree, states: Array, targets: Array
) -> tuple[tuple[Array, Array], tuple[PyTree, Array]]:
    """Return the sums and the gradient of the total, computed while a chunk's logits exist: they are never recomputed."""
    of_chunk = jax.value_and_grad(loss, (0, 1), has_aux=True)

    def add(sum_so_far: PyTree, chunk: tuple[Array, Array]) -> tuple[PyTree, tuple[Array, Array, Array]]:
        (total, count), (by_weights, by_states) = of_chunk(weights, *chunk)
        return jax.tree.map(lambda sums, one: sums + wide(one), sum_so_far, by_weights), (total, count, by_states)

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, wide_dtype(leaf.dtype)), weights)
    by_weights, (totals, counts, by_states) = jax.lax.scan(add, zero, (states, targets))
    by_weights = jax.tree.map(lambda sums, leaf: sums.astype(leaf.dtype), by_weights, weights)
    return (totals.sum(), counts.sum()), (by_weights, by_states)


def _pull_back(loss: ChunkLoss, gradient: tuple[PyTree, Array], cotangents: tuple[Array, Array]) -> tuple[PyTree, Array, None]:
    """Multiply the gradient by the cotangent of the total; the count depends on neither weights nor states."""
    by_weights, by_states = jax.tree.map(lambda leaf: leaf * cotangents[0].astype(leaf.dtype), gradient)
    return by_weights, by_states, None


_in_chunks.defvjp(_with_gradient, _pull_back)
