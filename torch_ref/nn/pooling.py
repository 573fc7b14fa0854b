"""Pooling: the states of a sentence's tokens -> one vector (Reimers and Gurevych 2019, section 3), padding left out."""

import torch
from torch import Tensor
from torch.nn import functional as F

from jaxformer.config.sentences import Pooling


def pool_tokens(states: Tensor, valid: Tensor, pooling: Pooling) -> Tensor:
    """Pool the states of the tokens that are `valid`; a mean of none is 0."""
    rows, first = torch.arange(len(states)), valid.int().argmax(1)
    if pooling == "cls":
        return states[rows, first]
    if pooling == "lasttoken":
        return states[rows, valid.shape[1] - 1 - valid.flip(1).int().argmax(1)]
    if pooling == "max":
        return states.masked_fill(~valid[..., None], -torch.inf).max(1).values
    weights = valid.to(states.dtype)
    if pooling == "weightedmean":
        weights = weights * (1 + torch.arange(valid.shape[1]) - first[:, None])
    total, number = (states * weights[..., None]).sum(1), weights.sum(1).clamp(min=1)[:, None]
    return total / (number.sqrt() if pooling == "mean_sqrt_len_tokens" else number)


def unit_norm(x: Tensor) -> Tensor:
    """x / |x|, with a norm of at least 1e-12."""
    return F.normalize(x, dim=-1)
