"""torch.optim with its schedule, and clipping."""

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.settings import OptimizerConfig, ScheduleConfig
from torch_ref.training.schedules import make_schedule


def make_optimizer(model: nn.Module, optimizer: OptimizerConfig, schedule: ScheduleConfig) -> tuple[Optimizer, LambdaLR]:
    """SGD, Adam or AdamW, and the scheduler that is stepped after it."""
    made = OPTIMIZERS[optimizer.name](model, optimizer)
    return made, LambdaLR(made, make_schedule(schedule))


def clip_(model: nn.Module, max_norm: float | None) -> None:
    """Scale the gradients by min(1, max_norm / (norm + 1e-6))."""
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def _sgd(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    return torch.optim.SGD(model.parameters(), config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay)


def _adam(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    betas = (config.beta1, config.beta2)
    return torch.optim.Adam(
        model.parameters(), config.learning_rate, betas=betas, eps=config.epsilon, weight_decay=config.weight_decay
    )


def _adamw(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, config.learning_rate, betas=(config.beta1, config.beta2), eps=config.epsilon)


OPTIMIZERS = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}
