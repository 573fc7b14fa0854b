"""Disentangled attention (He et al. 2020): scores of contents with the encoding of their distance, which each layer projects.

score(i, j) = q_i k_j + q_i k(i - j) + q(i - j) k_j, where q(d) and k(d) are the query and the key of distance d.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer.config.blocks import BlockConfig
from jaxformer.nn.norms import make_norm


def log_bucket(distance: Int[np.ndarray, "*rows"], buckets: int, farthest: int) -> Int[np.ndarray, "*rows"]:
    """Return the bucket of each distance, query - key: near ones have a bucket each, farther ones share them by their logarithm
    (in float32, as in transformers); those before and after a query are of opposite signs."""
    middle = buckets // 2
    size = np.abs(distance)
    ratio = np.log(np.maximum(size, middle).astype(np.float32) / np.float32(middle))
    shared = np.ceil(ratio / np.log(np.float32((farthest - 1) / middle)) * np.float32(middle - 1)) + middle
    return np.where(size <= middle, distance, shared.astype(np.int64) * np.sign(distance))


class DistanceEncoding(nnx.Module):
    """Encodings of the buckets of distances, one table for all layers of a stack."""

    def __init__(self, config: BlockConfig):
        self.table = nnx.Param(jnp.zeros((2 * config.relative_buckets, config.d_model), jnp.float32))
        self.norm = make_norm(config.norm if config.relative_norm else "none", config)

    def __call__(self) -> Float[Array, "1 R D"]:
        return self.norm(self.table[...])[None]


def distance_scores(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S N H"],
    distances: tuple[Float[Array, "1 R N H"], Float[Array, "1 R N H"]],
    rows: Int[Array, "T S"],
    scale: float,
) -> Float[Array, "B N T S"]:
    """Return the scores of queries and keys with the key and the query of their distance, whose row is given for each pair."""
    q_distance, k_distance = distances
    of_queries = jnp.einsum("btnh,rnh->bntr", q, k_distance[0])
    of_keys = jnp.einsum("bsnh,rnh->bnsr", k, q_distance[0])
    found = jnp.take_along_axis(of_keys, rows.T[None, None], -1).swapaxes(-1, -2)
    return scale * (jnp.take_along_axis(of_queries, rows[None, None], -1) + found)


def distance_rows(queries: int, keys: int, start: int | Int[Array, ""], buckets: int, farthest: int) -> Int[Array, "T S"]:
    """Return the row of the encoding of each pair's distance, for queries at start, start + 1, ... and keys at 0, 1, ..."""
    every = np.arange(-farthest, farthest + 1)
    known = jnp.asarray(np.clip(log_bucket(every, buckets, farthest) + buckets, 0, 2 * buckets - 1), jnp.int32)
    query, key = jnp.arange(queries, dtype=jnp.int32) + start, jnp.arange(keys, dtype=jnp.int32)
    return known[jnp.clip(query[:, None] - key[None, :], -farthest, farthest) + farthest]
