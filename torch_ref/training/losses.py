"""Cross-entropy as a sum and its normaliser."""

import torch
from torch import Tensor
from torch.nn import functional as F

from jaxformer.settings import IGNORE_INDEX, Spread


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    spread: Spread = "all",
) -> tuple[Tensor, Tensor]:
    """The summed loss, and what a mean divides by: the number of targets, or the sum of their class weights."""
    logits, targets = logits.flatten(0, -2), targets.flatten()
    kept = targets != ignore_index
    normaliser = kept.sum().to(logits.dtype) if class_weights is None else class_weights[targets[kept]].sum()
    if spread == "all":
        total = F.cross_entropy(
            logits, targets, class_weights, ignore_index=ignore_index, label_smoothing=smoothing, reduction="sum"
        )
        return total, normaliser
    wanted = smoothed(targets[kept], logits.shape[-1], smoothing, ignore_index if spread == "others_but_padding" else None)
    return F.cross_entropy(logits[kept], wanted.to(logits.dtype), class_weights, reduction="sum"), normaliser


def smoothed(targets: Tensor, classes: int, smoothing: float, padding: int | None) -> Tensor:
    """The wanted distribution of each target: 1 - smoothing on it, the rest spread over the others (but padding)."""
    sharers = classes - 1 if padding is None else classes - 2
    wanted = torch.full((len(targets), classes), smoothing / sharers, dtype=torch.float64)
    if padding is not None:
        wanted[:, padding] = 0
    return wanted.scatter(1, targets[:, None], 1 - smoothing)


def mean(total: Tensor, normaliser: Tensor) -> Tensor:
    """total / normaliser; 0 where there was nothing to count."""
    return total / torch.where(normaliser == 0, torch.ones_like(normaliser), normaliser)
