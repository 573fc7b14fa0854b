"""One optimizer step, and the loss over a whole split."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_ref.training.losses import mean
from torch_ref.training.optimizers import clip_

Loss = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""loss(model, batch) -> (total, normaliser)."""


def train_step(
    model: nn.Module, batch: Any, *, loss: Loss, optimizer: Optimizer, scheduler: LambdaLR, clip_norm: float | None = None
) -> Tensor:
    """One step down the gradient of the mean loss; the loss before it."""
    optimizer.zero_grad(set_to_none=True)
    value = mean(*loss(model, batch))
    value.backward()
    clip_(model, clip_norm)
    optimizer.step()
    scheduler.step()
    return value.detach()


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], *, loss: Loss) -> float:
    """The mean loss over all batches, without dropout."""
    training = model.training
    model.eval()
    total = count = 0.0
    for batch in batches:
        batch_total, batch_count = loss(model, batch)
        total, count = total + float(batch_total), count + float(batch_count)
    model.train(training)
    return total / count
