"""Specification of a training comparison: batches, losses, optimizers and schedules of both sides."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax

from jaxformer.errors import InputError, type_of
from jaxformer.validation.fields import check_function, check_number, check_size

Batch = tuple[np.ndarray, ...]
MAKES = "a function that makes an optimizer, as lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)"


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Batches, losses, optimizers and schedules of both sides."""

    batches: Sequence[Batch]
    """Arguments of the losses, call after call."""
    torch_loss: Callable[..., Any]
    """torch_loss(model, *tensors) -> a scalar; integers come as int64."""
    jax_loss: Callable[..., Any]
    """jax_loss(model, *arrays) -> a scalar, or the scalar and a tree of updated arrays, like Linen's running statistics; with a
    parameter named `key`, it is given a key for dropout."""
    torch_optimizer: Callable[[Any], Any]
    """Function that makes the optimizer: lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)."""
    jax_optimizer: optax.GradientTransformation | optax.MultiSteps
    """optax optimizer, including clipping, schedule and accumulation."""
    torch_schedule: Callable[[Any], Any] | None = None
    """Function that makes the scheduler, which steps after the optimizer: lambda optimizer: LambdaLR(optimizer, factor)."""
    jax_schedule: Callable[[Any], Any] | None = None
    """Learning rate as a function of the step 0, 1, 2, ..., an integer array; compared with the rate of torch's first
    parameters."""
    clip_norm: float | None = None
    """Norm for torch's clip_grad_norm_; None: the gradient is not clipped."""
    accumulate: int = 1
    """Number of batches over which torch averages the gradient of one step."""

    def __post_init__(self) -> None:
        check_size("accumulate", self.accumulate)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, 0, open_below=True)
        check_function("torch_optimizer", self.torch_optimizer, MAKES)
        if not (hasattr(self.jax_optimizer, "init") and hasattr(self.jax_optimizer, "update")):
            raise InputError(f"jax_optimizer is {type_of(self.jax_optimizer)}; give one of optax, as optax.adamw(1e-3)")
        if not self.batches or len(self.batches) % self.accumulate:
            raise InputError(
                f"{len(self.batches)} batches are not a whole number of steps of {self.accumulate}; give a multiple of it"
            )

    def steps(self, *, float64: bool = True) -> Iterator[Sequence[Batch]]:
        """Yield the batches of each step, with floats in float64 or in float32."""
        floating = np.float64 if float64 else np.float32
        for start in range(0, len(self.batches), self.accumulate):
            batches = self.batches[start : start + self.accumulate]
            yield [tuple(_as_floats(array, floating) for array in batch) for batch in batches]


def _as_floats(array: np.ndarray, floating: type[np.floating]) -> np.ndarray:
    return array.astype(floating) if np.issubdtype(array.dtype, np.floating) else array
