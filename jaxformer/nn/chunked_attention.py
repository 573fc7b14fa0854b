"""Attention over a batch of long texts, a few sequences or heads at a time.

The scores of a whole batch are written and read a dozen times in a step, and a processor's cache does not hold them. It holds
those of a few sequences, or of one head; the backward pass makes them again instead of keeping them. On a CPU that takes no
more time, and a fraction of the memory. torch's fused attention does both, in one kernel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.parallel.mesh import traced_for
from jaxformer.runtime import random

MOST_SCORES = 2**23
"""Scores of a batch that is worked off whole: 32 MiB in float32. Of fewer, parts save little memory, and cost some time."""
AT_ONCE = 2**19
"""Of more than these, so many at a time; one head of one sequence at least."""

Attend = Callable[..., Float[Array, "B T N H"]]
"""attend(q, k, v, mask, bias, rng)."""
SEQUENCES = {"q": 0, "k": 0, "v": 0, "mask": 0, "bias": 0}
HEADS = {"q": 2, "k": 2, "v": 2, "mask": 1, "bias": 1}
"""Which axis of an argument the sequences are, and which the heads."""


def attend_in_chunks(
    attend: Attend,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    mask: Array | None,
    bias: Array | None,
    rng: PRNGKeyArray | None,
) -> Float[Array, "B T N H"]:
    """`attend(q, k, v, mask, bias, rng)`; where the scores are many, and on a CPU, in parts that have a key each.

    A program that is exported for all sizes attends at once.
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
    in_parts = along(SEQUENCES, sequences, along(HEADS, together, part))
    return jax.lax.platform_dependent(q, k, v, mask, bias, rng, cpu=in_parts, default=attend)


def fewest_parts(of: int, scores: int) -> int:
    """Into how many equal parts they are cut, so that none has more than AT_ONCE; as many as can be, if that is not enough."""
    return next(n for n in range(1, of + 1) if n == of or (of % n == 0 and scores <= n * AT_ONCE))


def along(axes: dict[str, int], parts: int, attend: Attend) -> Attend:
    """The same in parts, one after the other, along these axes; what has one place there is shared by all parts."""

    def in_parts(q, k, v, mask, bias, rng):
        given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
        own: dict[str, Array | None] = {}
        own |= {name: cut(x, axes[name], parts) for name, x in given.items() if x is not None and x.shape[axes[name]] != 1}
        shared = {name: x for name, x in given.items() if name not in own}
        own["rng"] = None if rng is None else random.split(rng, parts)
        # On a mesh the parts lie on different devices, and go side by side: a loop would gather each of them everywhere.
        each = jax.lax.map if traced_for() is None else lambda f, own: jax.vmap(f)(own)
        found = jnp.moveaxis(each(lambda part: attend(**shared, **part), own), 0, axes["q"])
        return found.reshape(q.shape[:-1] + v.shape[-1:])

    return attend if parts == 1 else in_parts


def cut(x: Array, axis: int, parts: int) -> Array:
    """An axis in equal parts, which come first."""
    return jnp.moveaxis(x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1 :]), axis, 0)
