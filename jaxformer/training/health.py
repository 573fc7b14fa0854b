"""What the losses of a run's steps say: how many were skipped, and how many stand out. It is a part of the train state.

Only the JAX side has runs: the twin has none.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MOST_IN_A_ROW = 3
"""After so many skipped steps, one after another, a run stops."""
MEMORY = 100
"""Steps that the running mean of the loss goes over, about."""
SPIKE = 1.5, 0.5
"""A loss above factor * running mean + margin, in nats, is a spike."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Health:
    """Counts are int32 scalars and losses float32 ones, on the device or the host; steps are counted from 0, as batches are."""

    taken: Any
    """Steps that were taken."""
    skipped: Any
    """Steps whose loss or gradient was not finite: they changed no weights."""
    in_a_row: Any
    """Of these, those since the last step that was taken."""
    last_skipped: Any
    spikes: Any
    """Steps whose loss was far above the running mean."""
    last_spike: Any
    first_loss: Any
    """Of the first step taken."""
    mean_loss: Any
    """Its running mean."""

    def after(self, step: Int[Array, ""], loss: Float[Array, ""], is_finite: Bool[Array, ""]) -> "Health":
        """The same after one more step."""
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
    """Before the first step."""

    def count(value: int = 0) -> Array:
        return jnp.full((), value, jnp.int32)

    return Health(count(), count(), count(), count(-1), count(), count(-1), jnp.zeros(()), jnp.zeros(()))
