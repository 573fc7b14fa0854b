"""Formulas of norms, linear layers, logits from a table, added positions, and activations, gated or not."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.evidence import Evidence, Parameters, same_shape
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


NORMS = (
    Hypothesis("norm", norm_choices, norm),
    Hypothesis("batch norm", batch_norm_choices, batch_norm),
)


Weights = dict[str, tuple[np.ndarray, np.ndarray | None]]
"""Weight (inputs first) and bias, by their name in a cause."""


def affine_choices(evidence: Evidence) -> Choices:
    """List the choices of a linear layer: its own weight or another module's; a table of embeddings if it has no weight."""
    weight, bias = evidence.parameters.get("weight"), evidence.parameters.get("bias")
    weights = tied(evidence.others, bias) if weight is None else own_or_other(evidence.others, weight, bias)
    if not weights:
        return {}
    width = next(iter(weights.values()))[0].shape[0]
    fitting = {name: array for name, array in evidence.before.items() if array.shape[-1] == width}
    if not fitting:
        return {}
    return {
        "input": fitting,
        "scale": {"1": 1.0, "1/sqrt(d_model)": width**-0.5},
        "weight": weights,
        "bias": {"left out": 0.0} if bias is None else {"added": 1.0, "left out": 0.0, "added twice": 2.0},
    }


def own_or_other(others: Mapping[str, Parameters], weight: np.ndarray, bias: np.ndarray | None) -> Weights:
    """Return a module's weight and bias, and all that may be mistaken for them."""
    found = {"as it is": (weight, bias)}
    if weight.shape[0] == weight.shape[1]:
        found["transposed"] = weight.T, bias
    for path, own in others.items():
        if same_shape(own.get("weight"), weight) and same_shape(own.get("bias"), bias):
            found[f"of {path}"] = own["weight"], own.get("bias")
    return found


def tied(others: Mapping[str, Parameters], bias: np.ndarray | None) -> Weights:
    """Return the tables with as many rows as the bias has entries."""
    tables = {path: own["table"] for path, own in others.items() if bias is not None and len(own.get("table", ())) == bias.size}
    return {f"the table of {path}": (table.T, bias) for path, table in tables.items()}


def affine(**chosen: Any) -> np.ndarray:
    """Compute scale x W + b."""
    weight, bias = chosen["weight"]
    return chosen["scale"] * chosen["input"] @ weight + (0.0 if bias is None else chosen["bias"] * bias)


def embedding_choices(evidence: Evidence) -> Choices:
    """List the choices of an embedding: scaled rows of a table plus sinusoid positions (Vaswani et al. 2017, section 3.5)."""
    tokens = {name: x for name, x in list(evidence.before.items())[:1] if x.ndim == 3 and not name.startswith("input")}
    width = next((x.shape[-1] for x in tokens.values()), 1)
    if width % 2:
        return {}
    return {
        "embedding": tokens,
        "embedding scale": {"1": 1.0, "sqrt(d_model)": math.sqrt(width), "1/sqrt(d_model)": 1 / math.sqrt(width)},
        "positions": {"sinusoid": False, "sinusoid in blocks": True},
        "first position": {str(first): first for first in (0, 1, 2, -1)},
    }


def embed(**chosen: Any) -> np.ndarray:
    """Compute x scale + sin and cos of the positions."""
    x, first = chosen["embedding"], chosen["first position"]
    rates = 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = np.arange(first, first + x.shape[1])[:, None] * rates
    waves = np.stack([np.sin(angles), np.cos(angles)], -2 if chosen["positions"] else -1)
    return x * chosen["embedding scale"] + waves.reshape(x.shape[1:])


def lookup_choices(evidence: Evidence) -> Choices:
    """List the choices of a table lookup: the module's own table, or another one of the same width."""
    own = evidence.parameters.get("table")
    if own is None or not evidence.ids:
        return {}
    tables = {f"of {path}": other["table"] for path, other in evidence.others.items() if "table" in other}
    fitting = {name: table for name, table in tables.items() if table.shape[1] == own.shape[1]}
    return {"ids": dict(evidence.ids), "table": {"as it is": own} | fitting}


def look_up(**chosen: Any) -> np.ndarray:
    """Look up table[ids]; ValueError if the table is too short."""
    ids, table = chosen["ids"], chosen["table"]
    if ids.min() < 0 or ids.max() >= len(table):
        raise ValueError("no such row")
    return table[ids]


def activation_choices(evidence: Evidence) -> Choices:
    """List the choices of an activation: of the last array, or of one of the last two, times the other (gated)."""
    last = list(evidence.before.values())[-2:]
    gates = {"none": (last[-1], 1.0)} if last else {}
    if len(last) == 2 and last[0].shape == last[1].shape:
        gates |= {"first": (last[0], last[1]), "second": (last[1], last[0])}
    return {"activation": dict(ACTIVATIONS), "gate": gates} if gates else {}


def activate(**chosen: Any) -> np.ndarray:
    """Compute f(gate) times the other array, if there is one."""
    gate, value = chosen["gate"]
    return chosen["activation"](gate) * value


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute 1 / (1 + exp(-x))."""
    return 0.5 * (1 + np.tanh(0.5 * x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))),
    "gelu by tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick gelu": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "squared relu": lambda x: np.maximum(x, 0) ** 2,
    "none": lambda x: x,
}


LAYERS = (
    Hypothesis("linear layer", affine_choices, affine),
    Hypothesis("table of embeddings", lookup_choices, look_up),
    Hypothesis("embedding", embedding_choices, embed),
    Hypothesis("activation", activation_choices, activate),
)
