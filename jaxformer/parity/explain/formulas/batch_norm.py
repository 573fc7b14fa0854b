"""Batch norm, in training and in inference mode."""

from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence
from jaxformer.parity.explain.formulas.norms import EPSILONS
from jaxformer.parity.explain.search import Choices, Hypothesis

BATCH, RUNNING, ROW = "of the batch", "running", "of each row"


def batch_norm_choices(evidence: Evidence) -> Choices:
    """Of a module with running statistics."""
    mean, var = (evidence.statistics.get(name) for name in ("running_mean", "running_var"))
    if mean is None or var is None:
        return {}
    fitting = {name: x for name, x in evidence.before.items() if x.ndim > 1 and x.shape[1:2] == mean.shape}
    if not fitting:
        return {}
    x, one, zero = next(iter(fitting.values())), np.ones_like(mean), np.zeros_like(mean)
    gain, bias = evidence.parameters.get("gain"), evidence.parameters.get("bias")
    axes = {f"axis {axis}": axis for axis in range(1, x.ndim) if x.shape[axis] == len(mean)}
    return {
        "batch norm of": fitting,
        "statistics": {BATCH: None, RUNNING: (mean, var)} | ({ROW: ROW} if x.ndim > 2 else {}),
        "variance": {"biased": 0} | ({"unbiased": 1} if len(x) > 1 else {}),
        "epsilon": {f"{epsilon:g}": epsilon for epsilon in EPSILONS},
        "mean": {"subtracted": True, "kept": False},
        "epsilon's place": {"in the root": False, "outside the root": True},
        "gain": ({} if gain is None else {"as it is": gain, "plus 1": 1 + gain}) | {"left out": one},
        "bias": ({} if bias is None else {"added": bias}) | {"left out": zero},
        "channels along": axes,
    }


def batch_norm(**chosen: Any) -> np.ndarray:
    """(x - mean) / sqrt(variance + epsilon) gain + bias, each channel along one axis."""
    x, channels, epsilon = chosen["batch norm of"], chosen["channels along"], chosen["epsilon"]
    shape = [-1 if axis == channels else 1 for axis in range(x.ndim)]
    if isinstance(chosen["statistics"], tuple):
        mean, variance = (array.reshape(shape) for array in chosen["statistics"])
    else:
        rows = (0,) if chosen["statistics"] is None else ()
        axes = (*rows, *(axis for axis in range(1, x.ndim) if axis != channels))
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, ddof=chosen["variance"], keepdims=True)
    y = x - mean if chosen["mean"] else x
    y = y / (np.sqrt(variance) + epsilon if chosen["epsilon's place"] else np.sqrt(variance + epsilon))
    return y * chosen["gain"].reshape(shape) + chosen["bias"].reshape(shape)


HYPOTHESES = (Hypothesis("batch norm", batch_norm_choices, batch_norm),)
