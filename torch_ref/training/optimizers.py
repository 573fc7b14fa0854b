"""torch.optim with its schedule, and gradient clipping."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.validation.inputs import check_config
from torch_ref.training.schedules import Schedule, make_schedule

Which = Callable[[str, tuple[int, ...]], bool]
"""Function which(name, shape): True if a parameter is selected."""


def make_optimizer(
    model: nn.Module, optimizer: OptimizerConfig, schedule: ScheduleConfig | Schedule, *, decayed: Which | None = None
) -> tuple[Optimizer, LambdaLR]:
    """Build SGD, Adam or AdamW, and the scheduler that is stepped after it.

    `decayed` selects the parameters that decay, where `optimizer.decay` cannot. Those without `requires_grad` stay as they
    are.
    """
    check_config(optimizer, OptimizerConfig, name="optimizer")
    groups = decay_groups(model, optimizer, decayed or DECAYED[optimizer.decayed])
    made = OPTIMIZERS[optimizer.name](optimizer)(groups, lr=optimizer.learning_rate)
    return made, LambdaLR(made, make_schedule(schedule))


def clip_(model: nn.Module, max_norm: float | None) -> None:
    """Scale the gradients by min(1, max_norm / (norm + 1e-6))."""
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def decay_groups(model: nn.Module, config: OptimizerConfig, decayed: Which) -> list[dict[str, Any]]:
    """Split the parameters into those that decay and the others."""
    groups = {True: {"params": [], "weight_decay": config.weight_decay}, False: {"params": [], "weight_decay": 0.0}}
    for name, parameter in model.named_parameters():
        groups[bool(decayed(name, tuple(parameter.shape)))]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """True for a parameter of two axes or more that is not a bias: a bias per head has two axes as well."""
    return len(shape) >= 2 and name.rpartition(".")[2] != "bias"


DECAYED: dict[str, Which] = {"matrices": is_matrix, "all": lambda name, shape: True}


def _sgd(config: OptimizerConfig) -> Callable[..., Optimizer]:
    return partial(torch.optim.SGD, momentum=config.momentum)


def _adam(config: OptimizerConfig) -> Callable[..., Optimizer]:
    return partial(torch.optim.Adam, betas=(config.beta1, config.beta2), eps=config.epsilon)


def _adamw(config: OptimizerConfig) -> Callable[..., Optimizer]:
    return partial(torch.optim.AdamW, betas=(config.beta1, config.beta2), eps=config.epsilon)


OPTIMIZERS = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}
