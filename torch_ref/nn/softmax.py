"""Softmax over the keys that a query sees, and sinks that join it (Xiao et al. 2024; gpt-oss learns a logit per head)."""

import torch
from torch import Tensor, nn


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the unmasked keys; a row whose keys are all masked gives zeros, and finite gradients."""
    if mask is None:
        return scores.softmax(-1)
    alive = mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & alive, -torch.inf).softmax(-1).masked_fill(~alive, 0.0)


class Sinks(nn.Module):
    """Attention sinks: a learned logit per head that joins the softmax over the keys; its own weight is dropped."""

    def __init__(self, heads: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        sinks = self.bias.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        if mask is not None:
            mask = nn.functional.pad(mask.expand(*mask.shape[:-1], scores.shape[-1]), (0, 1), value=True)
        return masked_softmax(torch.cat([scores, sinks], -1), mask)[..., :-1]
