"""Positions of a grid of patches -> those of another grid, by bicubic interpolation (Keys 1981) with torch's numbers."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SHARP, SMOOTH = -0.75, -0.5
"""Slopes of the cubic: torch's, and the one that it takes with antialias."""


def cubic(distance: Float[np.ndarray, "..."], slope: float) -> Float[np.ndarray, "..."]:
    """Return the weight of a point at this distance, in steps of the grid; 0 from a distance of 2 on."""
    x = np.abs(distance)
    near = ((slope + 2) * x - (slope + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * slope
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resampling_matrix(size: int, wanted: int, *, antialias: bool = False) -> Float[np.ndarray, "wanted size"]:
    """Return the matrix that takes a row of `size` points to one of `wanted` points over the same length, in float64.

    Points beyond an end count as the point at the end; with `antialias` they do not count, and where points become fewer, each
    averages over as many more.
    """
    centers, matrix = (np.arange(wanted) + 0.5) * size / wanted, np.zeros((wanted, size))
    if antialias:
        width = max(size / wanted, 1.0)
        weights = cubic((np.arange(size) + 0.5 - centers[:, None]) / width, SMOOTH)
        return weights / weights.sum(1, keepdims=True)
    first = np.floor(centers - 0.5).astype(int) - 1
    for step in range(4):
        points = first + step
        weights = cubic(centers - 0.5 - points, SHARP)
        np.add.at(matrix, (np.arange(wanted), np.clip(points, 0, size - 1)), weights)
    return matrix


def resample_grid(
    table: Float[Array, "T D"], grid: tuple[int, int], wanted: tuple[int, int], *, antialias: bool = False
) -> Float[Array, "U D"]:
    """Return the rows of another grid (height, width), of a table with a row for each point of `grid`, line by line."""
    down, across = (
        jnp.asarray(resampling_matrix(*sizes, antialias=antialias), table.dtype) for sizes in zip(grid, wanted, strict=True)
    )
    lines = jnp.einsum("yi,xj,ijd->yxd", down, across, table.reshape(*grid, -1))
    return lines.reshape(-1, table.shape[-1])
