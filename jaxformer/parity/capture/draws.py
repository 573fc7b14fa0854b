"""Random numbers that a model draws in training mode, so that both sides can be given the same ones at the same places."""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DROPOUT, UNIFORM, NORMAL = "dropout", "uniform", "normal"
"""Kinds of draws: which units are kept, numbers between 0 and 1, and normal ones. Any other cannot be shared."""


@dataclass(frozen=True)
class Draw:
    """One draw of one run, without its numbers."""

    path: str
    """Of the innermost module around it; '' where that is the model itself."""
    kind: str
    """Of these, or the name of another operation."""
    shape: tuple[int, ...]
    number: int = 0
    """How many there were before at this path."""
    keep: float = 1.0
    """The probability that a unit is kept."""
    line: str = field(default="", compare=False)
    """Of the user's code, 'model.py:12'."""

    @property
    def says(self) -> str:
        """'dropout of 0.1 in layers.0'"""
        what = f"dropout of {1 - self.keep:.6g}" if self.kind == DROPOUT else f"{self.kind} numbers"
        return f"{what} in {self.path or 'the model itself'}" + (f" ({self.line})" if self.line else "")


def numbers_of(draw: Draw) -> np.ndarray:
    """The same ones every time, which float32 holds too: True where a unit is kept, else floats."""
    rng = np.random.default_rng([zlib.crc32(draw.path.encode()), draw.number])
    if draw.kind == NORMAL:
        return rng.standard_normal(draw.shape).astype(np.float32)
    uniform = np.asarray(rng.random(draw.shape, np.float32))
    return np.asarray(uniform < draw.keep) if draw.kind == DROPOUT else uniform


def in_range(numbers: Any, low: Any, high: Any) -> Any:
    """Numbers between 0 and 1 moved to between these two."""
    return low + (high - low) * numbers
