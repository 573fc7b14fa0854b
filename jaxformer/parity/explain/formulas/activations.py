"""Activations, gated or not."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence
from jaxformer.parity.explain.search import Choices, Hypothesis


def activation_choices(evidence: Evidence) -> Choices:
    """A function of what came last, or of one of the last two times the other."""
    last = list(evidence.before.values())[-2:]
    gates = {"none": (last[-1], 1.0)} if last else {}
    if len(last) == 2 and last[0].shape == last[1].shape:
        gates |= {"first": (last[0], last[1]), "second": (last[1], last[0])}
    return {"activation": dict(ACTIVATIONS), "gate": gates} if gates else {}


def activate(**chosen: Any) -> np.ndarray:
    """f(gate) times the other, if there is one."""
    gate, value = chosen["gate"]
    return chosen["activation"](gate) * value


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))"""
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


HYPOTHESES = (Hypothesis("activation", activation_choices, activate),)
