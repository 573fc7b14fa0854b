"""Gradients of both sides' weights before they are paired: they tell tensors of like values apart, as fresh norms are."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.runs.load_weights import joined, parted, ready
from jaxformer.parity.trace.jax_hooks import run_once
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.reference import Call, Reference
from jaxformer.parity.trace.torch_hooks import Arrays
from jaxformer.pytree import named_weights


@dataclass(frozen=True)
class OwnGradients:
    """Gradients of sum(output * cotangent), each side with its own weights, computed when they are asked for."""

    model: PyTree
    call: Call
    record: Callable[[], Reference]

    @cached_property
    def torch(self) -> Arrays:
        """torch's, by name; empty if none were recorded."""
        return dict(self.record().gradients)

    @cached_property
    def jax(self) -> Arrays:
        """JAX's, by name; empty if they cannot be computed."""
        reference = self.record()
        try:
            with jax_float64():
                weights, rest = parted(ready(to_float64(self.model), training=False))
                inputs = inputs_float64(reference.inputs)

                def total(weights: PyTree) -> Any:
                    output = side_by_side(self.call(joined(weights, rest), *inputs))
                    return (output * jnp.asarray(reference.cotangent)).sum().astype(float)

                found, _ = run_once(jax.grad(total), weights)
                return {name: np.asarray(array) for name, array in named_weights(found).items()}
        except Exception:  # the run itself will report why
            return {}
