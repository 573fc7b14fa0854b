"""Chunked attention: a batch of long sequences is attended to a few sequences or heads at a time.

The scores of a whole batch are written and read a dozen times per step, and do not fit into a processor's cache; those of a few
sequences, or of one head, do. The backward pass recomputes scores instead of keeping them. On a CPU chunking takes no more time
and a fraction of the memory. Under a causal mask, blocks of queries leave out the keys after them: three eighths of the work.
torch's fused attention does all of this in one kernel.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.nn.precision import wide_dtype
from jaxformer.nn.softmax import WEIGHTS, Sinks
from jaxformer.parallel.mesh import traced_for
from jaxformer.runtime import random

MOST_SCORES = 2**23
"""Most scores of a batch that is attended to at once: 32 MiB in float32. Chunking smaller batches would save little memory and
cost some time.
"""
AT_ONCE = 2**19
"""Most scores of a chunk, unless one head of one sequence has more."""

BLOCKS = 4
"""Number of blocks of queries under a causal mask."""
LEAST_SCORES = 2**18
"""Fewest scores of a batch whose queries are attended to in blocks: fewer are computed as fast at once."""

KEPT = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(WEIGHTS)
)
"""Values of a block that are kept for its gradient: of queries, keys and values there would be a copy per block."""


class Inputs(NamedTuple):
    """Queries, keys and values of all heads, and what joins their scores."""

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K _"]
    mask: Bool[Array, "_ _ _ _"] | None = None
    bias: Float[Array, "_ _ _ _"] | None = None
    sinks: Sinks | None = None
    rng: PRNGKeyArray | None = None


Attend = Callable[[Inputs], Float[Array, "B T N _"]]
SEQUENCES = {"q": 0, "k": 0, "v": 0, "mask": 0, "bias": 0}
HEADS = {"q": 2, "k": 2, "v": 2, "mask": 1, "bias": 1, "sinks": 0}
"""Axis of the sequences (SEQUENCES) and of the heads (HEADS) in the inputs."""


def chunked(attend: Attend, given: Inputs, *, causal: bool, plain: bool, scale: float | None) -> Attend | None:
    """Return an `attend` that works chunk by chunk, with a PRNG key per chunk; None where there are few scores.

    If `plain`, softmax(scale q k^T) is all that `attend` computes, without a mask but a `causal` one: without that, chunks are
    attended to by keys. A program that is exported for symbolic sizes attends at once.
    """
    (batch, queries, heads, _), (_, keys, kv_heads, _) = given.q.shape, given.k.shape
    if not all(isinstance(size, int) for size in (batch, queries, keys)):
        return None
    scores = batch * heads * queries * keys
    sequences = fewest_parts(batch, scores)
    together = fewest_parts(kv_heads, scores // sequences)

    in_chunks, part = None, by_keys(attend, scale) if plain and not causal else attend
    if causal and BLOCKS <= queries == keys and scores >= LEAST_SCORES and traced_for() is None:
        in_chunks = part = in_blocks(attend, queries)
    if scores > MOST_SCORES and sequences * together > 1:
        in_chunks = along(SEQUENCES, sequences, along(HEADS, together, jax.checkpoint(part, prevent_cse=False)))
    return in_chunks


def by_keys(attend: Attend, scale: float | None) -> Attend:
    """Return `attend_by_keys` with the gradient of `attend`, whose softmax keeps the digits of rows that see one key alone."""

    @jax.custom_jvp
    def attended(given: Inputs):
        return attend_by_keys(given.q, given.k, given.v, scale)

    @attended.defjvp
    def gradient(primals, tangents):
        return attended(*primals), jax.jvp(attend, primals, tangents)[1]

    return attended


def attend_by_keys(
    q: Float[Array, "B T N H"], k: Float[Array, "B S K H"], v: Float[Array, "B S K _"], scale: float | None
) -> Float[Array, "B T N _"]:
    """Attend to all keys, with scores `S T`: a CPU goes through columns in vectors, and along a row number by number."""
    grouped = (q * (q.shape[-1] ** -0.5 if scale is None else scale)).reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("bskh,btkgh->bkgst", k, grouped, preferred_element_type=wide_dtype(q.dtype))
    exp_scores = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-2, keepdims=True)))
    gathered = jnp.einsum("bkgst,bskh->btkgh", exp_scores.astype(v.dtype), v)
    return (gathered / jnp.moveaxis(exp_scores.sum(-2), 3, 1)[..., None].astype(v.dtype)).reshape(*q.shape[:3], -1)


def in_blocks(attend: Attend, length: int) -> Attend:
    """Return an `attend` that works on blocks of queries, each with the keys up to its last query."""
    edges = [i * length // BLOCKS for i in range(BLOCKS + 1)]

    def seen(x: Array | None, first: int, last: int) -> Array | None:
        """Return the part of a mask or bias for a block; axes of size 1 are shared."""
        if x is None:
            return None
        rows = x if x.shape[2] == 1 else x[:, :, first:last]
        return rows if x.shape[3] == 1 else rows[..., :last]

    def block(first: int, last: int) -> Attend:
        def attended(given: Inputs):
            own = given._replace(q=given.q[:, first:last], k=given.k[:, :last], v=given.v[:, :last])
            return attend(own._replace(mask=seen(given.mask, first, last), bias=seen(given.bias, first, last)))

        return jax.checkpoint(attended, policy=KEPT)

    def block_by_block(given: Inputs):
        rngs = [None] * BLOCKS if given.rng is None else random.split(given.rng, BLOCKS)
        found = [block(*edge)(given._replace(rng=own)) for edge, own in zip(pairwise(edges), rngs, strict=True)]
        return jnp.concatenate(found, axis=1)

    return block_by_block


def fewest_parts(of: int, scores: int) -> int:
    """Return the smallest number of equal parts with at most AT_ONCE scores each; `of`, the most possible, if that is not
    enough.
    """
    return next(n for n in range(1, of + 1) if n == of or (of % n == 0 and scores <= n * AT_ONCE))


def along(axes: dict[str, int], parts: int, attend: Attend) -> Attend:
    """Return an `attend` that works in chunks along these axes, one after the other; arguments of size 1 there are shared."""

    def in_chunks(given: Inputs):
        own: dict[str, Any] = {} if given.rng is None else {"rng": random.split(given.rng, parts)}
        for name, axis in axes.items():
            whole = getattr(given, name)
            if any(x.shape[axis] != 1 for x in jax.tree.leaves(whole)):
                own[name] = jax.tree.map(partial(cut, axis, parts), whole)
        # On a mesh the chunks lie on different devices and run in parallel: a loop would gather each of them on every device.
        each = jax.lax.map if traced_for() is None else lambda f, own: jax.vmap(f)(own)
        found = jnp.moveaxis(each(lambda part: attend(given._replace(**part)), own), 0, axes["q"])
        return found.reshape(given.q.shape[:-1] + given.v.shape[-1:])

    return attend if parts == 1 else in_chunks


def cut(axis: int, parts: int, x: Array) -> Array:
    """Split an axis into equal parts; the axis of the parts comes first."""
    return jnp.moveaxis(x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1 :]), axis, 0)
