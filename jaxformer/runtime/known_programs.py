"""Small test programs, one for each known fault of XLA, with their expected results."""

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from jaxformer.runtime.crashes import Child, Outcome
from jaxformer.runtime.xla_options import FAULTS, Fault

LONGEST = 60.0
"""Time limit of a program, in seconds; each takes two."""


def rows() -> tuple[Callable[..., Any], list[np.ndarray], np.ndarray]:
    """Squared lengths of 16,385 rows after a product, in float64."""
    import jax
    import jax.numpy as jnp

    x = np.stack([np.arange(16_385.0), np.zeros(16_385), np.zeros(16_385)], 1)
    return lambda x: jax.vmap(lambda row: jnp.sum((jnp.eye(3, dtype=x.dtype) @ row) ** 2))(x), [x], (x**2).sum(1)


def rank7() -> tuple[Callable[..., Any], list[np.ndarray], np.ndarray]:
    """Sum over one axis of a product of rank 7, with an axis of length 1."""
    x, y = np.random.default_rng(0).standard_normal((2, 3, 1, 2, 2, 8, 8, 8)).astype(np.float32)
    return lambda x, y: (x * y).sum(3), [x, y], (x * y).sum(3)


def rank8() -> tuple[Callable[..., Any], list[np.ndarray], np.ndarray]:
    """Product of an array of rank 3 and one of rank 8, summed over an axis of both."""
    rng = np.random.default_rng(0)
    x, y = rng.random((10, 4, 6, 1, 1, 1, 1, 1), np.float32), rng.random((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
    return lambda x, y: (x * y).sum(2), [x, y], (x * y).sum(2)


def dilated() -> tuple[Callable[..., Any], list[np.ndarray], np.ndarray]:
    """Maximum of two rows of an array dilated along its columns, whose holes have to stay empty."""
    import jax

    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    wanted = np.full((32, 255), -np.inf, np.float32)
    wanted[:, ::2] = x.reshape(32, 2, 128).max(1)

    def run(x: Any) -> Any:
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2, 1), (2, 1), "VALID", base_dilation=(1, 2))

    return run, [x], wanted


PROGRAMS = {"rows": rows, "rank7": rank7, "rank8": rank8, "dilated": dilated}


def is_right(name: str, options: Mapping[str, Any]) -> bool:
    """True if jax computes a program correctly, compiled with these options. A faulty program may end the process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    program, given, wanted = PROGRAMS[name]()
    found = np.asarray(jax.jit(program, compiler_options=dict(options) or None)(*given))
    return found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-5, atol=1e-5)


def tried(options: Mapping[str, Any]) -> dict[Fault, Outcome]:
    """Run every program with these options, each in its own process, all at once; return their outcomes."""
    payloads = {fault: pickle.dumps(partial(is_right, fault.name, dict(options))) for fault in FAULTS}
    children = {fault: Child(payload, {"JAX_DISABLE_JIT": "0"}) for fault, payload in payloads.items()}
    return {fault: child.outcome(LONGEST) for fault, child in children.items()}
