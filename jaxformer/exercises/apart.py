"""Numbers of a learner's port, computed in a process of its own: the judge imports none of the learner's code.

    python -m jaxformer.exercises.apart PORT.py FOUND.npz < GIVEN.npz

There is no torch in that process. An error of the port is one line on standard error, and exit code 3.
"""

import io
import sys
from pathlib import Path
from typing import Any

FAILED = 3
"""Exit code of a port that raises."""


def of_kind(arrays: dict[str, Any], kind: str) -> dict[str, Any]:
    """Select arrays named 'kind:name', by name."""
    return {name.partition(":")[2]: array for name, array in arrays.items() if name.startswith(f"{kind}:")}


def numbers(port: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Compute the output, the gradients by torch's names, and the parameters after training or the logits of each step."""
    import jax
    import jax.numpy as jnp

    from jaxformer.runtime.xla_options import exact

    weights, inputs = of_kind(given, "weight"), [*of_kind(given, "input").values()]

    def everything(weights: Any) -> dict[str, Any]:
        output, back = jax.vjp(lambda weights: port.call(port.make(weights), *map(jnp.asarray, inputs)), weights)
        found = {"output:": output}
        found |= {f"gradient:{name}": array for name, array in back(jnp.asarray(given["cotangent"]))[0].items()}
        if batches := of_kind(given, "batch"):
            found |= {f"parameter:{name}": array for name, array in trained(port, weights, [*batches.values()]).items()}
        if fed := of_kind(given, "fed"):
            steps = port.steps(port.make(weights), jnp.asarray(inputs[0]))
            found |= {"step:0": next(steps)}
            found |= {f"step:{i}": steps.send(jnp.asarray(ids)) for i, ids in enumerate(fed.values(), 1)}
        return found

    return jax.jit(everything, compiler_options=exact({"xla_backend_optimization_level": 0}))(weights)


def trained(port: Any, weights: Any, batches: list[Any]) -> Any:
    """Train by the port's loss and optimizer, a step for each batch; return the parameters."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = port.optimizer()
    state = optimizer.init(weights)
    for batch in batches:
        gradients = jax.grad(lambda weights, batch=batch: port.loss(port.make(weights), jnp.asarray(batch)))(weights)
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
    return weights


def main(file: str, found: str) -> int:
    """Import the port, compute and save its numbers."""
    import numpy as np

    from jaxformer.exercises.source import ABSENT, import_port, line_in
    from jaxformer.parity.numerics.float64 import jax_float64

    sys.modules |= dict.fromkeys(ABSENT)
    given = io.BytesIO(sys.stdin.buffer.read())
    try:
        port = import_port(Path(file))
        with np.load(given) as arrays, jax_float64():
            results: dict[str, Any] = {name: np.asarray(array) for name, array in numbers(port, dict(arrays)).items()}
            np.savez(found, **results)
    except BaseException as error:
        print(line_in(error, Path(file)), file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
