"""Chunked attention: a batch of long sequences is attended to a few sequences or heads at a time.

The scores of a whole batch are written and read a dozen times per step, and do not fit into a processor's cache; those of a few
sequences, or of one head, do. The backward pass recomputes scores instead of keeping them. On a CPU chunking takes no more time
and a fraction of the memory. torch's fused attention does both in one kernel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.parallel.mesh import traced_for
from jaxformer.runtime import random

MOST_SCORES = 2**23
"""Most scores of a batch that is attended to at once: 32 MiB in float32. Chunking smaller batches would save little memory and
cost some time.
"""
AT_ONCE = 2**19
"""Most scores of a chunk, unless one head of one sequence has more."""

Attend = Callable[..., Float[Array, "B T N H"]]
"""Function attend(q, k, v, mask, bias, rng)."""
SEQUENCES = {"q": 0, "k": 0, "v": 0, "mask": 0, "bias": 0}
HEADS = {"q": 2, "k": 2, "v": 2, "mask": 1, "bias": 1}
"""Axis of the sequences (SEQUENCES) and of the heads (HEADS) in each argument of Attend."""


def attend_in_chunks(
    attend: Attend,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    mask: Array | None,
    bias: Array | None,
    rng: PRNGKeyArray | None,
) -> Float[Array, "B T N H"]:
    """Call `attend(q, k, v, mask, bias, rng)`; on a CPU, chunk by chunk where there are many scores, with a PRNG key per chunk.

    A program that is exported for symbolic sizes attends at once.
    """
    (batch, queries, heads, _), (_, keys, kv_heads, _) = q.shape, k.shape
    if not all(isinstance(size, int) for size in (batch, queries, keys)):
        return attend(q, k, v, mask, bias, rng)
    scores = batch * heads * queries * keys
    sequences = fewest_parts(batch, scores)
    together = fewest_parts(kv_heads, scores // sequences)
    if scores <= MOST_SCORES or sequences * together == 1:
        return attend(q, k, v, mask, bias, rng)
    part = jax.checkpoint(attend, prevent_cse=False)
    in_chunks = along(SEQUENCES, sequences, along(HEADS, together, part))
    return jax.lax.platform_dependent(q, k, v, mask, bias, rng, cpu=in_chunks, default=attend)


def fewest_parts(of: int, scores: int) -> int:
    """Return the smallest number of equal parts with at most AT_ONCE scores each; `of`, the most possible, if that is not
    enough.
    """
    return next(n for n in range(1, of + 1) if n == of or (of % n == 0 and scores <= n * AT_ONCE))


def along(axes: dict[str, int], parts: int, attend: Attend) -> Attend:
    """Return an `attend` that works in chunks along these axes, one after the other; arguments of size 1 there are shared."""

    def in_chunks(q, k, v, mask, bias, rng):
        given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
        own: dict[str, Array | None] = {}
        own |= {name: cut(x, axes[name], parts) for name, x in given.items() if x is not None and x.shape[axes[name]] != 1}
        shared = {name: x for name, x in given.items() if name not in own}
        own["rng"] = None if rng is None else random.split(rng, parts)
        # On a mesh the chunks lie on different devices and run in parallel: a loop would gather each of them on every device.
        each = jax.lax.map if traced_for() is None else lambda f, own: jax.vmap(f)(own)
        found = jnp.moveaxis(each(lambda part: attend(**shared, **part), own), 0, axes["q"])
        return found.reshape(q.shape[:-1] + v.shape[-1:])

    return attend if parts == 1 else in_chunks


def cut(x: Array, axis: int, parts: int) -> Array:
    """Split an axis into equal parts; the axis of the parts comes first."""
    return jnp.moveaxis(x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1 :]), axis, 0)
