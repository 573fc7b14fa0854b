"""Positions that are counted by a mask: of the tokens that are seen, from 0 at the first of them."""

from collections.abc import Iterator
from typing import Any

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.explain.alterations.of_masks import is_new_mask, kept_keys
from jaxformer.parity.explain.alterations.other_ids import Others
from jaxformer.parity.explain.alterations.rerun import Rerun


def by_masks(rerun: Rerun, length: int) -> Others:
    """`B T`, in words: what stands at tokens that are not seen differs."""
    for valid in valid_tokens(rerun, length):
        counted = valid.long().cumsum(-1) - 1
        yield "that count the tokens seen alone", counted.clamp(min=0)
        yield "that count the tokens seen alone, -1 before them", counted
        for number in (0, 1):
            yield f"that count the tokens seen alone, {number} at the others", counted.masked_fill(~valid, number)
        yield "that count the tokens seen alone, times the mask and 1 more", (counted + 1) * valid


def valid_tokens(rerun: Rerun, length: int) -> Iterator[torch.Tensor]:
    """`B T`, of every mask that hides tokens in all their rows: True where a token is seen."""
    seen: list[torch.Tensor] = []
    found: list[torch.Tensor] = []
    for array in (*arrays_in(rerun.arguments), *(each.output for each in rerun.operations)):
        for valid in tokens_of(array, length, seen):
            if not valid.all() and valid.any() and not any(torch.equal(valid, other) for other in found):
                found.append(valid)
                yield valid


def tokens_of(array: Any, length: int, seen: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Of one mask: of numbers that are added, of 0 and 1, or of booleans, whose sense is not known."""
    if not isinstance(array, torch.Tensor) or array.ndim < 2 or array.shape[-1] != length:
        return
    if array.is_floating_point():
        those = [kept_keys(array)] if is_new_mask(array, seen) else []
    elif array.dtype == torch.bool:
        those = [array, ~array]
    else:
        those = [array.bool()] if array.ndim == 2 and array.max() == 1 and array.min() == 0 else []
    for keep in those:
        yield keep.reshape(len(keep), -1, length).any(1)
