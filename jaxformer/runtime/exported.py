"""A traced program as bytes, for another process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def exported(f: Callable[..., Any], *given: Any) -> tuple[bytes, Sequence[np.ndarray]]:
    """f, traced for `given`, as bytes, and the arrays in `given`, which `run_exported` takes."""
    import jax
    import jax.export

    leaves, tree = jax.tree.flatten(given)
    program = jax.export.export(jax.jit(lambda *leaves: f(*jax.tree.unflatten(tree, leaves))))(*leaves)
    return bytes(program.serialize()), [np.asarray(leaf) for leaf in leaves]


def run_exported(program: bytes, arrays: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    """What the program gives, compiled with these options."""
    import jax
    import jax.export

    call = jax.export.deserialize(bytearray(program)).call
    return np.asarray(jax.jit(call, compiler_options=dict(options) or None)(*arrays))
