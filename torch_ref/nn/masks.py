"""Attention masks: boolean, True = may attend, of rank 4, `B N|1 T S` with 1 where an axis is shared."""

import functools

import torch
from torch import Tensor

from jaxformer.validation.inputs import check_valid


def causal_mask(queries: int, keys: int | None = None, offset: int = 0) -> Tensor:
    """Causal mask: query t, at position t + offset, sees the keys up to that position: `1 1 T S`.

    causal_mask(3)        causal_mask(2, 4, offset=1)
    1 . .                 1 1 . .
    1 1 .                 1 1 1 .
    1 1 1
    """
    keys = queries if keys is None else keys
    last = torch.arange(queries) + offset
    return (torch.arange(keys)[None, :] <= last[:, None])[None, None]


def window_mask(queries: int, keys: int, window: int, offset: int = 0) -> Tensor:
    """Sliding window: query t, at index t + offset, sees the keys less than `window` tokens away, on both sides: `1 1 T S`.

    window_mask(4, 4, 2)        causal_mask(4) & window_mask(4, 4, 2)
    1 1 . .                     1 . . .
    1 1 1 .                     1 1 . .
    . 1 1 1                     . 1 1 .
    . . 1 1                     . . 1 1
    """
    distance = torch.arange(keys)[None, :] - (torch.arange(queries) + offset)[:, None]
    return (distance.abs() < window)[None, None]


def padding_mask(valid: Tensor) -> Tensor:
    """Padding mask: every query sees the keys that are not padding: `B S` -> `B 1 1 S`.

    padding_mask([[True, True, False]])
    1 1 .
    """
    check_valid(valid)
    return valid[:, None, None, :]


def lengths_to_valid(lengths: Tensor, size: int) -> Tensor:
    """True for the first lengths[b] of the `size` places in row b, which hold its tokens: `B S`.

    lengths_to_valid([1, 3], 3)
    1 . .
    1 1 1
    """
    return torch.arange(size)[None, :] < lengths[:, None]


def ids_to_valid(ids: Tensor, pad: int) -> Tensor:
    """True for each id that is not padding: `B S`.

    ids_to_valid([[5, 0, 6], [0, 7, 8]], pad=0)
    1 . 1
    . 1 1
    """
    return ids != pad


def seen_keys(mask: Tensor | None, keys: int) -> Tensor:
    """True for each key that some query of some head sees; all without a mask: `_ S`.

    seen_keys(padding_mask([[False, True, True]]), 3)
    . 1 1
    """
    return torch.ones(1, keys, dtype=torch.bool) if mask is None else mask.flatten(1, 2).any(1).expand(-1, keys)


def combine(*masks: Tensor | None) -> Tensor | None:
    """Combine masks: the result allows what every mask allows; None allows everything.

    combine(causal_mask(3), padding_mask([[False, True, True]]))
    . . .
    . 1 .
    . 1 1
    """
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(torch.logical_and, given) if given else None
