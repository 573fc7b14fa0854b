"""The sense of boolean masks in torch's code (True where a key is seen, or where it is hidden), and the keys that they show."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose.attention_cores import FUSED
from jaxformer.parity.diagnose.trace import Op, same
from jaxformer.parity.numerics.float_masks import MASKED, allowed


class Mask(NamedTuple):
    """Mask of torch's code, and the keys that it shows."""

    array: torch.Tensor
    seen: torch.Tensor
    """Boolean mask, True where a key is seen."""
    hides: bool | None
    """True for booleans that are True where a key is hidden, False for all other masks; None if the code does not tell."""

    def showing(self, seen: torch.Tensor) -> torch.Tensor:
        """Return a mask of the same type and sense that shows these keys."""
        return as_mask(self.array, ~seen if self.hides else seen)


def mask_of(array: torch.Tensor, operations: Sequence[Op]) -> Mask:
    """Build a mask from an array that these operations read."""
    keep = kept_keys(array)
    hides = hides_where_true(array, operations) if array.dtype == torch.bool else False
    return Mask(array, ~keep if hides else keep, hides)


def kept_keys(mask: torch.Tensor) -> torch.Tensor:
    """Boolean mask, True where a mask keeps a key; booleans are taken as they are."""
    return torch.from_numpy(np.asarray(allowed(mask.numpy()) if mask.is_floating_point() else mask.numpy()))


def as_mask(like: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Mask of the type of `like`: booleans, or 0 and the lowest number of `like` (-inf if none is negative)."""
    if not like.is_floating_point():
        return keep
    lowest = like.min() if like.min() < 0 else torch.tensor(-torch.inf, dtype=torch.float64)
    return torch.where(keep, 0.0, lowest).to(like.dtype)


def hides_where_true(mask: torch.Tensor, operations: Sequence[Op]) -> bool | None:
    """Return True if booleans are True where a key is hidden, by the operations that read them.

    If these do not tell, a mask of as many queries as keys hides where it is True if no query's own key is True; any other
    gives None.
    """
    told = by_readers(mask, operations)
    square = mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]
    if told is None and square and mask.any() and not mask.diagonal(dim1=-2, dim2=-1).any():
        return True
    return told


def by_readers(mask: torch.Tensor, operations: Sequence[Op]) -> bool | None:
    """Return the sense that the first operation tells that reads the mask, or a mask that is made of it."""
    readers = [i for i, op in enumerate(operations) if any(same(x, mask) for x in (*op.args, *op.kwargs.values()))]
    told = (by_reader(mask, operations[i], operations[i + 1 :]) for i in readers)
    return next((each for each in told if each is not None), None)


def by_reader(mask: torch.Tensor, op: Op, later: Sequence[Op]) -> bool | None:
    """Return the sense that one operation tells: by the very negative numbers that it gives, or by the readers of the switches
    (booleans, or numbers 0 and 1) that it makes of the mask."""
    output: Any = op.output
    if op.name == FUSED:
        return False
    if not isinstance(output, torch.Tensor):
        return None
    if output.dtype == torch.bool or bool(((output == 0) | (output == 1)).all()):
        told = by_readers(output, later)
        return told if told is None else told != is_opposite(mask, output)
    try:
        true = mask.bool().expand_as(output)
    except RuntimeError:  # an array of another shape
        return None
    low = output <= MASKED
    of_true, of_false = bool(low[true].all()), bool(low[~true].all())
    return of_true if of_true != of_false else None


def is_opposite(mask: torch.Tensor, switches: torch.Tensor) -> bool:
    """True if switches are off exactly where a mask's are on."""
    return same(mask.bool().squeeze(), (switches == 0).squeeze())
