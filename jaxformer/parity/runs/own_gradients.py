"""Gradients of both sides' weights before they are paired: they tell tensors of like values apart, as fresh norms are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.runs.load_weights import joined, parted, ready
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.programs import run_once
from jaxformer.parity.trace.reference import Call, Reference
from jaxformer.parity.trace.torch_hooks import Arrays
from jaxformer.pytree import named_weights


def own_gradients(model: PyTree, call: Call, reference: Reference) -> tuple[Arrays, Arrays]:
    """Return the gradients of sum(output * cotangent) by name, torch's and JAX's, each side with its own weights.

    Both are empty if none were recorded, or if JAX's cannot be computed.
    """
    if not reference.gradients:
        return {}, {}
    try:
        with jax_float64():
            weights, rest = parted(ready(to_float64(model), training=False))
            inputs = inputs_float64(reference.inputs)

            def total(weights: PyTree) -> Any:
                output = side_by_side(call(joined(weights, rest), *inputs))
                return (output * jnp.asarray(reference.cotangent)).sum().astype(float)

            found, _ = run_once(jax.grad(total), weights)
            return dict(reference.gradients), {name: np.asarray(array) for name, array in named_weights(found).items()}
    except Exception:  # the run itself will report why
        return {}, {}
