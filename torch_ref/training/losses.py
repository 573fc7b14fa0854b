"""Losses as a sum and its normaliser."""

import torch
from torch import Tensor
from torch.nn import functional as F

from jaxformer.config.settings import IGNORE_INDEX, LEFT_OUT, Spread


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    spread: Spread = "all",
) -> tuple[Tensor, Tensor]:
    """Return the summed loss and the divisor of a mean: the number of targets, or the sum of their class weights."""
    logits, targets = logits.flatten(0, -2), targets.flatten()
    kept = targets != ignore_index
    normaliser = kept.sum().to(logits.dtype) if class_weights is None else class_weights[targets[kept]].sum()
    if spread == "all":
        total = F.cross_entropy(
            logits, targets, class_weights, ignore_index=ignore_index, label_smoothing=smoothing, reduction="sum"
        )
        return total, normaliser
    wanted = smoothed(targets[kept], logits.shape[-1], smoothing, spread, ignore_index)
    return F.cross_entropy(logits[kept], wanted.to(logits.dtype), class_weights, reduction="sum"), normaliser


def kl_divergence(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    smoothing: float = 0.0,
    spread: Spread = "others_but_padding",
) -> tuple[Tensor, Tensor]:
    """Return the summed Kullback-Leibler divergence of the model from the smoothed targets, and the number of targets."""
    logits, targets = logits.flatten(0, -2), targets.flatten()
    kept = targets != ignore_index
    wanted = smoothed(targets[kept], logits.shape[-1], smoothing, spread, ignore_index)
    return F.kl_div(logits[kept].log_softmax(-1), wanted.to(logits.dtype), reduction="sum"), kept.sum().to(logits.dtype)


def smoothed(targets: Tensor, classes: int, smoothing: float, spread: Spread, padding: int) -> Tensor:
    """Wanted distribution of each target: 1 - smoothing on its class, the rest spread over all classes, the others, or the
    others but padding.
    """
    share = smoothing / (classes - LEFT_OUT[spread])
    wanted = torch.full((len(targets), classes), share, dtype=torch.float64)
    if spread == "others_but_padding":
        wanted[:, padding] = 0
    return wanted.scatter(1, targets[:, None], 1 - smoothing + (share if spread == "all" else 0))


def mean(total: Tensor, normaliser: Tensor) -> Tensor:
    """total / normaliser; 0 if there was nothing to count."""
    return total / torch.where(normaliser == 0, torch.ones_like(normaliser), normaliser)
