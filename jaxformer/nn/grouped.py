"""Products of rows with a matrix of their own group, in blocks of rows of one group each.

`jax.lax.ragged_dot` multiplies every row with every matrix on CPU. The PyTorch twin goes through the experts in a loop, and
has no such function.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MOST_ROWS = 64
"""Most rows of a block."""


class Blocks(NamedTuple):
    """Places of rows in blocks of n, each of one group. A group's last block may have places that hold no row."""

    used: Int[Array, ""]
    """Number of blocks that have rows; the others come last."""
    group: Int[Array, " blocks"]
    sizes: Int[Array, " E"]
    """Number of places of each group; the last has those of the blocks without rows, too."""
    row: Int[Array, "blocks n"]
    """Row at each place; the number of all rows where there is none."""
    place: Int[Array, " rows"]
    """Place of each row among those of all blocks."""


def rows_of_block(rows: int, groups: int) -> int:
    """Return the number of rows of a block: half of a group's on average, as a power of 2, and at most MOST_ROWS."""
    return min(MOST_ROWS, 1 << max(0, (rows // (2 * groups)).bit_length() - 1))


def make_blocks(group_of_row: Int[Array, " rows"], groups: int) -> Blocks:
    """Give each row a place in a block of its group. The number of blocks is static: each group may have one block
    more than its full ones."""
    rows = len(group_of_row)
    n = rows_of_block(rows, groups)
    number = jnp.arange(rows // n + min(groups, rows) * (n > 1), dtype=group_of_row.dtype)
    sizes = (group_of_row[:, None] == jnp.arange(groups, dtype=number.dtype)[None]).sum(0, dtype=number.dtype)
    per_group = -(-sizes // n)
    ends = jnp.cumsum(per_group)
    group = jnp.minimum((number[:, None] >= ends[None]).sum(1, dtype=number.dtype), groups - 1)
    places = n * jnp.diff(ends.at[-1].set(len(number)), prepend=0)

    order = jnp.argsort(group_of_row, stable=True).astype(number.dtype)
    skipped = (ends - per_group) * n - (jnp.cumsum(sizes) - sizes)
    place = jnp.arange(rows, dtype=number.dtype) + skipped[group_of_row[order]]
    row = jnp.full(len(number) * n, rows, number.dtype).at[place].set(order, unique_indices=True).reshape(-1, n)
    return Blocks(ends[-1], group, places, row, jnp.zeros_like(place).at[order].set(place, unique_indices=True))


@jax.custom_vjp
def grouped_matmul(x: Float[Array, "blocks n I"], w: Float[Array, "E I O"], blocks: Blocks) -> Float[Array, "blocks n O"]:
    """Multiply each block with the matrix of its group.

    On CPU it goes from block to block, elsewhere it is `jax.lax.ragged_dot`: the platform lowered for decides.
    There is no forward-mode derivative.
    """
    return _product(x, w, blocks)


@jax.custom_vjp
def grouped_outer(x: Float[Array, "blocks n I"], g: Float[Array, "blocks n O"], blocks: Blocks) -> Float[Array, "E I O"]:
    """Return x^T g of each group's places: the gradient of `grouped_matmul` with respect to w."""
    return _outer(x, g, blocks)


# Each is the other's gradient, so that reverse mode works to every order.
grouped_matmul.defvjp(
    lambda x, w, blocks: (grouped_matmul(x, w, blocks), (x, w, blocks)),
    lambda kept, g: (grouped_matmul(g, kept[1].mT, kept[2]), grouped_outer(kept[0], g, kept[2]), None),
)
grouped_outer.defvjp(
    lambda x, g, blocks: (grouped_outer(x, g, blocks), (x, g, blocks)),
    lambda kept, dw: (grouped_matmul(kept[1], dw.mT, kept[2]), grouped_matmul(kept[0], dw, kept[2]), None),
)


@jax.custom_batching.sequential_vmap  # ragged_dot has no vmap over w, and a loop of blocks would do the most blocks of any
def _product(x: Array, w: Array, blocks: Blocks) -> Array:
    return jax.lax.platform_dependent(x, w, blocks, cpu=_by_blocks, default=_by_ragged)


@jax.custom_batching.sequential_vmap
def _outer(x: Array, g: Array, blocks: Blocks) -> Array:
    return jax.lax.platform_dependent(x, g, blocks, cpu=_outer_by_blocks, default=_outer_by_ragged)


def _by_blocks(x: Array, w: Array, blocks: Blocks) -> Array:
    def multiply(i: Array, y: Array) -> Array:
        return y.at[i].set(x[i] @ w[blocks.group[i]])

    return jax.lax.fori_loop(0, blocks.used, multiply, jnp.zeros((*x.shape[:2], w.shape[-1]), x.dtype))


def _outer_by_blocks(x: Array, g: Array, blocks: Blocks) -> Array:
    def add(i: Array, sums: Array) -> Array:
        return sums.at[blocks.group[i]].add(x[i].T @ g[i])

    return jax.lax.fori_loop(0, blocks.used, add, jnp.zeros((len(blocks.sizes), x.shape[-1], g.shape[-1]), g.dtype))


def _by_ragged(x: Array, w: Array, blocks: Blocks) -> Array:
    return jax.lax.ragged_dot(x.reshape(-1, x.shape[-1]), w, blocks.sizes).reshape(*x.shape[:2], w.shape[-1])


def _outer_by_ragged(x: Array, g: Array, blocks: Blocks) -> Array:
    like = jax.ShapeDtypeStruct((len(blocks.sizes), x.shape[-1], g.shape[-1]), g.dtype)
    (found,) = jax.linear_transpose(lambda w: _by_ragged(x, w, blocks), like)(g)
    return found
