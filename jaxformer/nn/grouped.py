"""Product of rows that are sorted by group with a matrix of their group, as `jax.lax.ragged_dot`, which on CPU multiplies every
row with every matrix.

The PyTorch twin goes through the experts in a loop, and has no such function.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MOST_ROWS = 64
"""Most rows of a block."""


@jax.custom_vjp
def grouped_matmul(x: Float[Array, "rows I"], w: Float[Array, "E I O"], sizes: Int[Array, " E"]) -> Float[Array, "rows O"]:
    """Multiply the first sizes[0] rows of x with w[0], the next sizes[1] with w[1], and so on; the sizes add up to all rows.

    On CPU it computes block by block of rows of one group, elsewhere by `jax.lax.ragged_dot`: the platform lowered for decides.
    There is no forward-mode derivative.
    """
    return _product(x, w, sizes)


@jax.custom_vjp
def grouped_outer(x: Float[Array, "rows I"], g: Float[Array, "rows O"], sizes: Int[Array, " E"]) -> Float[Array, "E I O"]:
    """Return x^T g of each group's rows: the gradient of `grouped_matmul` with respect to w."""
    return _outer(x, g, sizes)


def _outer_of_ragged(x: Array, g: Array, sizes: Array) -> Array:
    like = jax.ShapeDtypeStruct((len(sizes), x.shape[-1], g.shape[-1]), g.dtype)
    (found,) = jax.linear_transpose(lambda w: jax.lax.ragged_dot(x, w, sizes), like)(g)
    return found


@jax.custom_batching.sequential_vmap  # ragged_dot has no vmap over w, and a loop of blocks would do the most blocks of any
def _product(x: Array, w: Array, sizes: Array) -> Array:
    return jax.lax.platform_dependent(x, w, sizes, cpu=_by_blocks, default=jax.lax.ragged_dot)


@jax.custom_batching.sequential_vmap
def _outer(x: Array, g: Array, sizes: Array) -> Array:
    return jax.lax.platform_dependent(x, g, sizes, cpu=_outer_by_blocks, default=_outer_of_ragged)


# Each is the other's gradient, so that reverse mode works to every order.
grouped_matmul.defvjp(
    lambda x, w, sizes: (grouped_matmul(x, w, sizes), (x, w, sizes)),
    lambda kept, g: (grouped_matmul(g, kept[1].mT, kept[2]), grouped_outer(kept[0], g, kept[2]), None),
)
grouped_outer.defvjp(
    lambda x, g, sizes: (grouped_outer(x, g, sizes), (x, g, sizes)),
    lambda kept, dw: (grouped_matmul(kept[1], dw.mT, kept[2]), grouped_matmul(kept[0], dw, kept[2]), None),
)


class Blocks(NamedTuple):
    """Blocks of rows, each of one group."""

    used: Int[Array, ""]
    """Number of blocks that have rows; the others come last."""
    group: Int[Array, " blocks"]
    rows: Int[Array, "blocks n"]
    """Rows of each block; past the end where a block has fewer."""
    place: Int[Array, " rows"]
    """Place of each row among those of all blocks."""


def rows_of_block(rows: int, groups: int) -> int:
    """Return the number of rows of a block: half of a group's on average, as a power of 2, and at most MOST_ROWS."""
    return min(MOST_ROWS, 1 << max(0, (rows // (2 * groups)).bit_length() - 1))


def make_blocks(sizes: Int[Array, " E"], rows: int) -> Blocks:
    """Cut sorted rows into blocks of one group each. Their number is static: each group may have one that is not full."""
    groups = len(sizes)
    n = rows_of_block(rows, groups)
    per_group = -(-sizes // n)
    ends, starts = jnp.cumsum(per_group), jnp.cumsum(sizes) - sizes
    number = jnp.arange(rows // n + min(groups, rows) * (n > 1), dtype=sizes.dtype)
    group = jnp.minimum(_group_of(number, ends), groups - 1)
    first = starts[group] + (number - (ends - per_group)[group]) * n
    found = first[:, None] + jnp.arange(n, dtype=sizes.dtype)[None]
    row = jnp.arange(rows, dtype=sizes.dtype)
    place = row + ((ends - per_group) * n - starts)[_group_of(row, starts + sizes)]
    return Blocks(ends[-1], group, jnp.where(found < (starts + sizes)[group][:, None], found, rows), place)


def _group_of(number: Int[Array, " X"], ends: Int[Array, " E"]) -> Int[Array, " X"]:
    """Return the group of each number, by the number that each group ends before."""
    return (number[:, None] >= ends[None]).sum(1, dtype=ends.dtype)


def _by_blocks(x: Array, w: Array, sizes: Array) -> Array:
    blocks = make_blocks(sizes, len(x))
    parts = _take(x, blocks)

    def multiply(i: Array, y: Array) -> Array:
        return y.at[i].set(parts[i] @ w[blocks.group[i]])

    y = jax.lax.fori_loop(0, blocks.used, multiply, jnp.zeros((*blocks.rows.shape, w.shape[-1]), x.dtype))
    return y.reshape(-1, y.shape[-1])[blocks.place]


def _outer_by_blocks(x: Array, g: Array, sizes: Array) -> Array:
    blocks = make_blocks(sizes, len(x))
    parts, cotangents = _take(x, blocks), _take(g, blocks)

    def add(i: Array, sums: Array) -> Array:
        return sums.at[blocks.group[i]].add(parts[i].T @ cotangents[i])

    return jax.lax.fori_loop(0, blocks.used, add, jnp.zeros((len(sizes), x.shape[-1], g.shape[-1]), g.dtype))


def _take(x: Array, blocks: Blocks) -> Array:
    return x.at[blocks.rows].get(mode="fill", fill_value=0)
