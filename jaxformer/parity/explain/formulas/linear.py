"""Linear layers, and logits from a table of embeddings."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence, same_shape
from jaxformer.parity.explain.search import Choices, Hypothesis


def affine_choices(evidence: Evidence) -> Choices:
    """A linear layer, with its own weights or those of another one; without any, with a table of embeddings."""
    weight, bias = evidence.parameters.get("weight"), evidence.parameters.get("bias")
    weights = tied(evidence.others, bias) if weight is None else own_or_other(evidence.others, weight, bias)
    if not weights:
        return {}
    wide = next(iter(weights.values()))[0].shape[0]
    fitting = {name: x for name, x in evidence.before.items() if x.shape[-1] == wide}
    if not fitting:
        return {}
    return {
        "input": fitting,
        "scale": {"1": 1.0, "1/sqrt(d_model)": wide**-0.5},
        "weight": weights,
        "bias": {"left out": False} if bias is None else {"added": True, "left out": False},
    }


Weights = dict[str, tuple[np.ndarray, np.ndarray | None]]


def own_or_other(others: Mapping[str, Mapping[str, np.ndarray]], weight: np.ndarray, bias: np.ndarray | None) -> Weights:
    """A module's weight and bias, and all that could be taken for them."""
    square = {"transposed": (weight.T, bias)} if weight.shape[0] == weight.shape[1] else {}
    return (
        {"as it is": (weight, bias)}
        | square
        | {
            f"of {path}": (own["weight"], own.get("bias"))
            for path, own in others.items()
            if same_shape(own.get("weight"), weight) and same_shape(own.get("bias"), bias)
        }
    )


def tied(others: Mapping[str, Mapping[str, np.ndarray]], bias: np.ndarray | None) -> Weights:
    """Tables whose rows read out as many numbers as there are biases."""
    tables = {path: own["table"] for path, own in others.items() if "table" in own}
    return {
        f"the table of {path}": (table.T, bias)
        for path, table in tables.items()
        if bias is not None and len(table) == bias.size
    }


def affine(**chosen: Any) -> np.ndarray:
    """scale x W + b"""
    weight, bias = chosen["weight"]
    return chosen["scale"] * chosen["input"] @ weight + (bias if chosen["bias"] else 0.0)


HYPOTHESES = (Hypothesis("linear layer", affine_choices, affine),)
