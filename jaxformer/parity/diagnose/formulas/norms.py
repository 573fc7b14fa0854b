"""Formulas of layer norm, RMS norm, and batch norm in training and in inference mode."""

from typing import Any

import numpy as np

from jaxformer.parity.diagnose.evidence import Evidence, same_shape
from jaxformer.parity.diagnose.formulas.choices import Choices, Hypothesis

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0, 1e-4, 1e-7, 1e-10, float(np.finfo(np.float32).eps))
"""Epsilons in use; the last one is the default of torch's RMSNorm for float32."""


def norm_choices(evidence: Evidence) -> Choices:
    """List the choices of layer norm and RMS norm."""
    gain, bias = evidence.parameters.get("gain"), evidence.parameters.get("bias")
    fitting = {name: x for name, x in evidence.before.items() if gain is not None and x.shape[-1:] == gain.shape}
    if gain is None or not fitting:
        return {}
    others = {f"of {path}": own["gain"] for path, own in evidence.others.items() if same_shape(own.get("gain"), gain)}
    other_biases = {f"of {path}": own["bias"] for path, own in evidence.others.items() if same_shape(own.get("bias"), gain)}
    return {
        "norm of": fitting,
        "epsilon": {f"{epsilon:g}": epsilon for epsilon in EPSILONS},
        "mean": {"subtracted": True, "kept": False},
        "variance": {"biased": 0, "unbiased": 1},
        "epsilon's place": {"in the root": False, "outside the root": True},
        "gain": {"as it is": gain, "plus 1": 1 + gain, "left out": np.ones_like(gain)} | others,
        "bias": ({} if bias is None else {"added": bias}) | {"left out": np.zeros_like(gain)} | other_biases,
    }


def norm(**chosen: Any) -> np.ndarray:
    """Compute (x - mean) / sqrt(variance + epsilon) gain + bias in the chosen variants."""
    x = chosen["norm of"]
    y = x - x.mean(-1, keepdims=True) if chosen["mean"] else x
    variance = (y**2).sum(-1, keepdims=True) / (x.shape[-1] - chosen["variance"])
    epsilon = chosen["epsilon"]
    y = y / (np.sqrt(variance) + epsilon if chosen["epsilon's place"] else np.sqrt(variance + epsilon))
    return y * chosen["gain"] + chosen["bias"]


BATCH, RUNNING, ROW = "of the batch", "running", "of each row"


def batch_norm_choices(evidence: Evidence) -> Choices:
    """List the choices of a batch norm, for a module with running statistics."""
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
    """Compute (x - mean) / sqrt(variance + epsilon) gain + bias, with the channels along the chosen axis."""
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


HYPOTHESES = (
    Hypothesis("norm", norm_choices, norm),
    Hypothesis("batch norm", batch_norm_choices, batch_norm),
)
