"""Rotations in steps of decoding: their rates, as the code that makes the tables has them, and vectors that are turned back."""

from typing import Any

import torch

COSINES = (torch.cos, torch.Tensor.cos, torch.sin, torch.Tensor.sin)
PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm)


def places_of(x: Any, total: int) -> torch.Tensor | None:
    """Positions of the rows of angles, `... T H`: of the step's token or of all so far; None where they are no angles."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim < 2 or x.shape[-2] not in (1, total):
        return None
    return torch.arange(total - x.shape[-2], total)


def rates_of(angles: torch.Tensor, position: int) -> torch.Tensor:
    """Radians a position, by the last row."""
    return angles.reshape(-1, *angles.shape[-2:])[0, -1] / position


def turned_back(x: torch.Tensor, rates: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Vectors `... T H` at these positions, without their rotation; a part that is not rotated comes last."""
    width, half, places = len(rates), len(rates) // 2, places[:, None]
    cos, sin = (places * rates).cos(), (places * rates).sin()
    turned, rest = x[..., :width], x[..., width:]
    if torch.equal(rates[:half], rates[half:]):
        quarter = torch.cat([-turned[..., half:], turned[..., :half]], -1)
    else:
        quarter = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
    return torch.cat([turned * cos - quarter * sin, rest], -1)


def is_paired(rates: torch.Tensor) -> bool:
    """Whether every rate is there twice, for both units of a pair."""
    half = len(rates) // 2
    return len(rates) % 2 == 0 and (torch.equal(rates[:half], rates[half:]) or torch.equal(rates[::2], rates[1::2]))


def is_of_queries(q: torch.Tensor, k: torch.Tensor, width: int, total: int) -> bool:
    """Whether a product is that of queries, of one token or of all so far, and all keys, as columns; and not of weights."""
    if k.shape[-1] != total or q.shape[-2] not in (1, total) or k.shape[-2] < width:
        return False
    return bool((q < 0).any()) or not torch.allclose(q.sum(-1), torch.ones((), dtype=q.dtype))
