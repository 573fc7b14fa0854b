"""Short training loop over randomly drawn batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_ref.models import GPT
from torch_ref.training.losses import cross_entropy
from torch_ref.training.routing import has_router_loss, router_loss
from torch_ref.training.step import Loss, train_step


def draw_windows(ids: Tensor, batch: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `batch` windows at random positions; return them, and the same windows one token later: both `B T`."""
    starts = torch.randint(len(ids) - context, (batch, 1), generator=generator)
    windows = ids[starts + torch.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


def next_token_loss(model: GPT, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the next token: its sum and its count; in training, with the loss of routers."""
    inputs, targets = batch
    if not model.training or not has_router_loss(model.config):
        return cross_entropy(model(inputs), targets)
    states, logits = model.routed_hidden_state(inputs)
    total, count = cross_entropy(model.read_out(states), targets)
    return total + count * router_loss(logits, model.config), count


def fit(
    model: nn.Module,
    draw: Callable[[], Any],
    *,
    loss: Loss,
    steps: int,
    optimizer: Optimizer,
    scheduler: LambdaLR,
    clip_norm: float | None,
) -> float:
    """Train in place, with dropout; return the mean loss over these steps."""
    model.train()
    total = torch.zeros(())
    for _ in range(steps):
        total += train_step(model, draw(), loss=loss, optimizer=optimizer, scheduler=scheduler, clip_norm=clip_norm)
    return float(total) / steps
