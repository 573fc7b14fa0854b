"""One comparison of a JAX module with its PyTorch twin: weights, output, gradients, and float32 accuracy.

    reference = run_torch(torch_module, inputs)
    compare(reference, Subject(jax_module))

Each check alone raises ConversionError or ParityError; `CHECKS` lists them, cheapest first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family, gradients_to_torch, to_jax, to_torch
from jaxformer.errors import ParityError
from jaxformer.parity.holding import Arrays
from jaxformer.parity.inputs import cast, widen
from jaxformer.parity.loading import ready
from jaxformer.parity.measure import Difference, check_bfloat16, check_float32, check_float64, check_gradients
from jaxformer.parity.one_sided import OneSided
from jaxformer.parity.reference import Call, Reference, apply
from jaxformer.parity.watch_jax import run_once


@dataclass(frozen=True)
class Subject:
    """The JAX side: a module, possibly abstract, whose weights come from the reference."""

    like: PyTree
    call: Call = apply
    family: Family = TWIN
    tables: Arrays = field(default_factory=dict)
    """torch's buffers that the JAX model holds none of, by name: its code may compute them."""
    alone: tuple[OneSided, ...] = ()
    """Parameters that one side does not have."""

    def model(self, reference: Reference) -> PyTree:
        """The module with the reference's weights, in inference mode."""
        return ready(to_jax(reference.weights, self.like, self.family), training=False)


def load_torch(module: Any, tree: PyTree, family: Family = TWIN) -> Any:
    """The torch module, filled in place with a JAX tree's weights; strict about names and shapes."""
    import torch

    state = {name: torch.from_numpy(array) for name, array in to_torch(tree, family, like=module.state_dict()).items()}
    module.load_state_dict(state, strict=True)
    return module


def check_weights(reference: Reference, subject: Subject) -> None:
    """Every tensor is used exactly once, and comes back bit for bit."""
    back = to_torch(subject.model(reference), subject.family)
    changed = [name for name, tensor in reference.weights.items() if not same_bits(back[name], tensor)]
    if changed:
        raise ParityError(f"weights change on the way to JAX and back: {', '.join(changed)}")


def check_output(reference: Reference, subject: Subject) -> Difference:
    """Tier A."""
    with jax.enable_x64(True):
        model = widen(subject.model(reference))
        output = jax.jit(subject.call)(model, *(jnp.asarray(_widened(array)) for array in reference.inputs))
        return check_float64("output", output, reference.output)


def check_output32(reference: Reference, subject: Subject) -> float:
    """Tier B; returns the ratio to its line."""
    output, _ = run_once(subject.call, subject.model(reference), *map(jnp.asarray, reference.inputs), compiler_options=None)
    return check_float32("output in float32", output, reference.narrow["float32"], reference.output)


def check_output16(reference: Reference, subject: Subject) -> float:
    """Tier C; returns the ratio to its line."""
    model = cast(subject.model(reference), jnp.bfloat16)
    inputs = cast(list(map(jnp.asarray, reference.inputs)), jnp.bfloat16)
    output, _ = run_once(subject.call, model, *inputs, compiler_options=None)
    return check_bfloat16("output in bfloat16", output, reference.narrow["bfloat16"], reference.output)


def jax_gradients(reference: Reference, subject: Subject) -> dict[str, Any]:
    """The gradients of the sum of output * cotangent in float64, under the names that the reference has."""

    def objective(model, floats, others):
        inputs = floats | others
        output = subject.call(model, *(inputs[f"input {i}"] for i in range(len(inputs))))
        return (output * jnp.asarray(reference.cotangent)).sum()

    with jax.enable_x64(True):
        inputs = {f"input {i}": jnp.asarray(_widened(array)) for i, array in enumerate(reference.inputs)}
        floats = {name: array for name, array in inputs.items() if jnp.issubdtype(array.dtype, jnp.floating)}
        others = {name: array for name, array in inputs.items() if name not in floats}
        model = widen(subject.model(reference))
        weights, arrays = jax.jit(jax.grad(objective, (0, 1)))(model, floats, others)
        return gradients_to_torch(weights, subject.family, reference.weights) | arrays


def check_all_gradients(reference: Reference, subject: Subject) -> list[str]:
    """Tier A, for every weight and every float input; returns the null gradients' names."""
    return check_gradients(jax_gradients(reference, subject), reference.gradients)


CHECKS: dict[str, Callable[[Reference, Subject], Any]] = {
    "weights, bitwise": check_weights,
    "output, float64": check_output,
    "gradients, float64": check_all_gradients,
    "output, float32": check_output32,
}


def compare(reference: Reference, subject: Subject) -> None:
    """Every check in turn."""
    for check in CHECKS.values():
        check(reference, subject)


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """The same type, shape and bytes: -0.0 is not 0.0, and a NaN equals itself."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
