"""Losses of a dual encoder, of the logits of every pair of B images and their B texts: row i and column i belong together."""

import torch
from torch import Tensor
from torch.nn import functional as F


def softmax_contrastive_loss(logits: Tensor) -> Tensor:
    """Mean of the cross-entropy of each image among the texts, and of each text among the images (Radford et al. 2021)."""
    places = torch.arange(len(logits))
    return (F.cross_entropy(logits, places) + F.cross_entropy(logits.T, places)) / 2


def sigmoid_contrastive_loss(logits: Tensor) -> Tensor:
    """Cross-entropy of each pair by itself, of one class if it belongs together: the sum divided by B (Zhai et al. 2023)."""
    together = torch.eye(len(logits), dtype=torch.bool)
    return -F.logsigmoid(torch.where(together, logits, -logits)).sum() / len(logits)
