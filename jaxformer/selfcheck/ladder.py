"""The ladder: how a JAX module is compared with its PyTorch twin. Its weights, output, gradients, and float32 accuracy.

    reference = run_torch(torch_module, inputs)
    for check in LADDER.values():
        check(reference, Candidate(jax_module))

Each check raises ConversionError or ParityError; `LADDER` lists them, cheapest first.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family, gradients_to_torch, to_torch
from jaxformer.errors import ParityError
from jaxformer.parity.judge.low_precision import check_output32
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import Error, check_float64, check_gradients, same_bits
from jaxformer.parity.record.reference import Reference
from jaxformer.parity.run.candidate import Candidate


def load_torch(module: Any, tree: PyTree, family: Family = TWIN) -> Any:
    """The torch module, filled in place with a JAX tree's weights; strict about names and shapes."""
    import torch

    state = {name: torch.from_numpy(array) for name, array in to_torch(tree, family, like=module.state_dict()).items()}
    module.load_state_dict(state, strict=True)
    return module


def check_weights(reference: Reference, candidate: Candidate) -> None:
    """Every tensor is used exactly once, and is bitwise equal after the way back."""
    back = to_torch(candidate.model(reference), candidate.family)
    changed = [name for name, tensor in reference.weights.items() if not same_bits(back[name], tensor)]
    if changed:
        raise ParityError(f"weights change on the way to JAX and back: {', '.join(changed)}")


def check_output(reference: Reference, candidate: Candidate) -> Error:
    """Tier A."""
    with jax.enable_x64(True):
        model = to_float64(candidate.model(reference))
        output = jax.jit(candidate.call)(model, *to_float64(reference.inputs))
        return check_float64("output", output, reference.output)


def jax_gradients(reference: Reference, candidate: Candidate) -> dict[str, Any]:
    """The gradients of the sum of output * cotangent in float64, by torch's names."""

    def objective(model, floats, others):
        inputs = floats | others
        output = candidate.call(model, *(inputs[f"input {i}"] for i in range(len(inputs))))
        return (output * jnp.asarray(reference.cotangent)).sum()

    with jax.enable_x64(True):
        inputs = {f"input {i}": array for i, array in enumerate(to_float64(reference.inputs))}
        floats = {name: array for name, array in inputs.items() if jnp.issubdtype(array.dtype, jnp.floating)}
        others = {name: array for name, array in inputs.items() if name not in floats}
        model = to_float64(candidate.model(reference))
        weights, arrays = jax.jit(jax.grad(objective, (0, 1)))(model, floats, others)
        return gradients_to_torch(weights, candidate.family, reference.weights) | arrays


def check_all_gradients(reference: Reference, candidate: Candidate) -> list[str]:
    """Tier A, for every weight and every float input; returns the null gradients' names."""
    return check_gradients(jax_gradients(reference, candidate), reference.gradients)


LADDER: dict[str, Callable[[Reference, Candidate], Any]] = {
    "weights, bitwise": check_weights,
    "output, float64": check_output,
    "gradients, float64": check_all_gradients,
    "output, float32": check_output32,
}
