"""Health of a run: counts of skipped steps and loss spikes, kept in the train state.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MOST_IN_A_ROW = 3
"""Number of consecutive skipped steps after which a run stops."""
MEMORY = 100
"""Approximate number of steps in the running mean of the loss."""
SPIKE = 1.5, 0.5
"""Factor and margin of a spike: a loss above factor * running mean + margin, in nats."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Health:
    """Counts (int32 scalars) and losses (float32 scalars), on the device or the host; steps count from 0, as batches do."""

    taken: Any
    """Number of steps taken."""
    skipped: Any
    """Number of steps skipped because loss or gradient was not finite: they changed no weights."""
    in_a_row: Any
    """Number of steps skipped since the last step taken."""
    last_skipped: Any
    spikes: Any
    """Number of steps whose loss was far above the running mean."""
    last_spike: Any
    first_loss: Any
    """Loss of the first step taken."""
    mean_loss: Any
    """Running mean of the loss."""

    def after(self, step: Int[Array, ""], loss: Float[Array, ""], is_finite: Bool[Array, ""]) -> "Health":
        """Return the health after one more step."""
        factor, margin = SPIKE
        loss = jnp.where(is_finite, loss, 0).astype(self.mean_loss.dtype)
        is_spike = is_finite & (self.taken >= MEMORY) & (loss > factor * self.mean_loss + margin)
        share = 1 / (1 + jnp.minimum(self.taken, MEMORY - 1)).astype(loss.dtype)
        taken = is_finite.astype(jnp.int32)
        return Health(
            taken=self.taken + taken,
            skipped=self.skipped + 1 - taken,
            in_a_row=(self.in_a_row + 1) * (1 - taken),
            last_skipped=jnp.where(is_finite, self.last_skipped, step),
            spikes=self.spikes + is_spike,
            last_spike=jnp.where(is_spike, step, self.last_spike),
            first_loss=jnp.where(is_finite & (self.taken == 0), loss, self.first_loss),
            mean_loss=jnp.where(is_finite, self.mean_loss + share * (loss - self.mean_loss), self.mean_loss),
        )


def healthy() -> Health:
    """Return the health before the first step."""

    def count(value: int = 0) -> Array:
        return jnp.full((), value, jnp.int32)

    return Health(count(), count(), count(), count(-1), count(), count(-1), jnp.zeros(()), jnp.zeros(()))
