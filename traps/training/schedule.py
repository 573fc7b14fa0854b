"""A schedule that is one step late.

torch's scheduler steps after the optimizer: the first step uses the rate of step 0, as optax's count does. A warmup that
divides by its length begins at 0 and learns nothing in its first step, one that adds 1 first does not; both are in use.
"""

import optax
import torch
from torch.optim.lr_scheduler import LambdaLR

WARMUP = 3


def torch_optimizer():
    return (
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP)),
    )


def wrong():
    return optax.sgd(optax.linear_schedule(0.0, 0.1, WARMUP))


def right():
    return optax.sgd(optax.linear_schedule(0.1 / WARMUP, 0.1, WARMUP - 1))
