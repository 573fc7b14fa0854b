"""Embeddings: rows of a table, and sinusoid positions."""

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


def lookup_choices(evidence: Evidence) -> Choices:
    """Rows of a module's own table, or of another one's of its width."""
    own = evidence.parameters.get("table")
    if own is None or not evidence.ids:
        return {}
    tables = {f"of {path}": other["table"] for path, other in evidence.others.items() if "table" in other}
    fitting = {name: table for name, table in tables.items() if table.shape[1] == own.shape[1]}
    return {"ids": dict(evidence.ids), "table": {"as it is": own} | fitting}


def look_up(**chosen: Any) -> np.ndarray:
    """table[ids]; a ValueError where the table is too short."""
    ids, table = chosen["ids"], chosen["table"]
    if ids.min() < 0 or ids.max() >= len(table):
        raise ValueError("no such row")
    return table[ids]


HYPOTHESES = (
    Hypothesis("table of embeddings", lookup_choices, look_up),
    Hypothesis("embedding", embedding_choices, embed),
)
