"""A small classifier on both sides, for the traps of optimizers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

LABELS = 5


class Small(torch.nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 7), torch.nn.Linear(7, LABELS)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def small(p: Any, x: Any) -> Any:
    """Compute the same in JAX."""
    x = jnp.tanh(x @ p["up.weight"].T + p["up.bias"])
    return x @ p["down.weight"].T + p["down.bias"]


def batches() -> list[tuple[np.ndarray, ...]]:
    """Draw four batches of inputs and labels."""
    rng = np.random.default_rng(1)
    return [(rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, LABELS, 8)) for _ in range(4)]


def torch_loss(model: Any, x: Any, labels: Any) -> Any:
    """Mean cross-entropy."""
    return torch.nn.functional.cross_entropy(model(x), labels)


def jax_loss(p: Any, x: Any, labels: Any) -> Any:
    """Mean cross-entropy."""
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(small(p, x)), labels[:, None], 1).mean()
