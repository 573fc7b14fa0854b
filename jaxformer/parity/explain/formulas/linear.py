"""Linear layers, and logits from a table of embeddings."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence, Parameters, same_shape
from jaxformer.parity.explain.search import Choices, Hypothesis

Weights = dict[str, tuple[np.ndarray, np.ndarray | None]]
"""A weight with its inputs first and a bias, by what they are called in a cause."""


def affine_choices(evidence: Evidence) -> Choices:
    """A linear layer, with its own weights or those of another one; without any, with a table of embeddings."""
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
    """A module's weight and bias, and all that could be taken for them."""
    found = {"as it is": (weight, bias)}
    if weight.shape[0] == weight.shape[1]:
        found["transposed"] = weight.T, bias
    for path, own in others.items():
        if same_shape(own.get("weight"), weight) and same_shape(own.get("bias"), bias):
            found[f"of {path}"] = own["weight"], own.get("bias")
    return found


def tied(others: Mapping[str, Parameters], bias: np.ndarray | None) -> Weights:
    """Tables whose rows read out as many numbers as there are biases."""
    tables = {path: own["table"] for path, own in others.items() if bias is not None and len(own.get("table", ())) == bias.size}
    return {f"the table of {path}": (table.T, bias) for path, table in tables.items()}


def affine(**chosen: Any) -> np.ndarray:
    """scale x W + b"""
    weight, bias = chosen["weight"]
    return chosen["scale"] * chosen["input"] @ weight + (0.0 if bias is None else chosen["bias"] * bias)


HYPOTHESES = (Hypothesis("linear layer", affine_choices, affine),)
