"""Layer norm and RMS norm."""

from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence, same_shape
from jaxformer.parity.explain.search import Choices, Hypothesis

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 0.0, 1e-4, 1e-7, 1e-10, float(np.finfo(np.float32).eps))
"""The last is that of torch's RMSNorm for float32, if none is given."""


def norm_choices(evidence: Evidence) -> Choices:
    """Layer norm and RMS norm."""
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
    """(x - mean) / sqrt(variance + epsilon) gain + bias, in the variants chosen."""
    x = chosen["norm of"]
    y = x - x.mean(-1, keepdims=True) if chosen["mean"] else x
    variance = (y**2).sum(-1, keepdims=True) / (x.shape[-1] - chosen["variance"])
    epsilon = chosen["epsilon"]
    y = y / (np.sqrt(variance) + epsilon if chosen["epsilon's place"] else np.sqrt(variance + epsilon))
    return y * chosen["gain"] + chosen["bias"]


HYPOTHESES = (Hypothesis("norm", norm_choices, norm),)
