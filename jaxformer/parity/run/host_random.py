"""Whether the JAX model gives another output each time, since it draws random numbers on the host."""

import jax
import numpy as np

from jaxformer.parity.capture.host_draws import host_draws
from jaxformer.parity.capture.jax_hooks import run_once
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64
from jaxformer.parity.run.trace import Traced


def host_random(traced: Traced) -> list[str]:
    """The lines that draw, if two runs differ. It takes a trace of the model, and two runs where something is drawn."""
    run = traced.isolation
    with jax_float64(traced.tables):
        model, inputs = run.model, inputs_float64(traced.reference.inputs)

        def fresh(model: object, *inputs: object) -> object:
            return run.call(model, *inputs)

        try:
            with host_draws(model, run.call) as places:
                jax.eval_shape(fresh, model, *inputs)
            if not places:
                return []
            outputs = [np.asarray(run_once(lambda *given: fresh(*given), model, *inputs)[0]) for _ in range(2)]
        except Exception:  # the run itself told why
            return []
    return [] if np.array_equal(*outputs, equal_nan=True) else list(dict.fromkeys(places))
