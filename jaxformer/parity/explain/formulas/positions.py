"""Embeddings with sinusoid positions."""

import math
from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence
from jaxformer.parity.explain.search import Choices, Hypothesis


def embedding_choices(evidence: Evidence) -> Choices:
    """A table's rows, scaled, and sinusoid positions (Vaswani et al. 2017, section 3.5)."""
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
    """x scale + sin and cos of the positions."""
    x, first = chosen["embedding"], chosen["first position"]
    rates = 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = np.arange(first, first + x.shape[1])[:, None] * rates
    waves = np.stack([np.sin(angles), np.cos(angles)], -2 if chosen["positions"] else -1)
    return x * chosen["embedding scale"] + waves.reshape(x.shape[1:])


HYPOTHESES = (Hypothesis("embedding", embedding_choices, embed),)
