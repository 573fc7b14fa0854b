"""One optimizer step, and the loss over a whole split."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_ref.training.losses import mean
from torch_ref.training.optimizers import clip_

Loss = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""Function loss(model, batch) -> (total, normaliser)."""


def train_step(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss,
    optimizer: Optimizer,
    scheduler: LambdaLR,
    clip_norm: float | None = None,
    parts: int = 1,
) -> Tensor:
    """Take one step down the gradient of the mean loss; return the loss before it.

    If the loss or the gradient's norm is not finite, the step is skipped: weights and moments stay as they are. The rows of a
    batch may be processed in several `parts`, for less memory: the mean is still over the whole batch.
    """
    optimizer.zero_grad(set_to_none=True)
    value = (whole_gradient_ if parts == 1 else partial(gradient_in_parts_, parts=parts))(loss, model, batch)
    norm = get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    if torch.isfinite(value) and torch.isfinite(norm):
        clip_(model, clip_norm)
        optimizer.step()
        scheduler.step()
    return value


def whole_gradient_(loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of a batch, and leave its gradient on the parameters."""
    value = mean(*loss(model, batch))
    value.backward()
    return value.detach()


def gradient_in_parts_(loss: Loss, model: nn.Module, batch: Any, *, parts: int) -> Tensor:
    """Return the mean loss, part by part, and leave its gradient: sums are divided once, so that all targets count alike."""
    total, count = torch.zeros(()), torch.zeros(())
    for part in zip(*(leaf.chunk(parts) for leaf in batch), strict=True):
        part_total, part_count = loss(model, part)
        part_total.backward()
        total, count = total + part_total.detach(), count + part_count
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = mean(parameter.grad, count)
    return mean(total, count)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], *, loss: Loss) -> float:
    """Return the mean loss over all batches, without dropout."""
    training = model.training
    model.eval()
    total = count = 0.0
    for batch in batches:
        batch_total, batch_count = loss(model, batch)
        total, count = total + float(batch_total), count + float(batch_count)
    model.train(training)
    return total / count
