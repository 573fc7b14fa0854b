"""Positions of a grid of patches -> those of another grid, by torch's bicubic interpolation."""

from torch import Tensor
from torch.nn import functional as F


def resample_grid(table: Tensor, grid: tuple[int, int], wanted: tuple[int, int], *, antialias: bool = False) -> Tensor:
    """Return the rows of another grid (height, width), of a table with a row for each point of `grid`, line by line."""
    lines = table.reshape(1, *grid, -1).permute(0, 3, 1, 2)
    found = F.interpolate(lines, size=wanted, mode="bicubic", align_corners=False, antialias=antialias)
    return found[0].flatten(1).T
