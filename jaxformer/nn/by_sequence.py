"""Attention over a batch of long texts, a few sequences at a time.

The scores of a whole batch are written and read a dozen times in a step, and a processor's cache does not hold them. It holds
those of a few sequences, and the backward pass makes them again instead of keeping them: on a CPU that is faster, and takes
less memory. torch's fused attention does both, in one kernel.
"""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer import keep_mask

MOST_SCORES = 2**21
"""Scores of a batch that is worked off whole: 8 MiB in float32."""
AT_ONCE = 2**19
"""Of more than these, so many at a time; one sequence at least."""

Attend = Callable[..., Float[Array, "B T N H"]]
"""attend(q, k, v, mask, bias, rng)."""


def by_sequence(
    attend: Attend,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    mask: Array | None,
    bias: Array | None,
    rng: PRNGKeyArray | None,
) -> Float[Array, "B T N H"]:
    """`attend(q, k, v, mask, bias, rng)`; where the scores are many, and on a CPU, in parts that have a key each."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    scores = batch * heads * queries * keys
    parts = next(n for n in range(1, batch + 1) if batch % n == 0 and (scores <= n * AT_ONCE or n == batch))
    if scores <= MOST_SCORES or parts == 1:
        return attend(q, k, v, mask, bias, rng)

    def in_parts(q, k, v, mask, bias, rng):
        shared = {name: x for name, x in (("mask", mask), ("bias", bias)) if x is None or x.shape[0] == 1}
        own = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
        own = {name: x.reshape(parts, -1, *x.shape[1:]) for name, x in own.items() if name not in shared}
        own["rng"] = None if rng is None else keep_mask.split(rng, parts)
        attend_part = jax.checkpoint(lambda part: attend(**part, **shared), prevent_cse=False)
        return jax.lax.map(attend_part, own).reshape(q.shape[:-1] + v.shape[-1:])

    return jax.lax.platform_dependent(q, k, v, mask, bias, rng, cpu=in_parts, default=attend)
