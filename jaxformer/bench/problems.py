"""Problems that all sides of a measurement share: configurations, inputs, and weights in a folder.

Imports neither jax nor torch.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxformer.config.models import ModelConfig
from jaxformer.config.settings import OptimizerConfig, Precision, ScheduleConfig

Arrays = tuple[np.ndarray, ...]
WEIGHTS = "weights.safetensors"
"""File of the weights in the torch twin's layout."""
GPT2 = "model.safetensors"
"""File of the weights in transformers' layout."""
START = 1
"""First token of a written target; no target ends before its last token."""
FILE = "problem.pickle"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training of a model."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batches: list[Arrays]
    """Inputs and targets, or sources and targets; all sides must have the same loss on the first batch."""
    held_out: list[Arrays]
    draws: Literal["windows", "task", "ready"]
    """Source of the batches of jaxformer's step, as in its recipe: windows of `text`, pairs of `task`, or the ready batches."""
    text: np.ndarray | None = None
    """Token ids of the text."""
    task: str = ""
    pad: int | None = None
    """Padding id of pairs; None for a text."""
    smoothing: float = 0.0
    shapes: int = 1
    """Number of steps until every batch shape has occurred."""
    seed: int = 0
    device: str = "cpu"
    precision: Precision = "float32"


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Text generation by a model."""

    model: ModelConfig
    prompts: np.ndarray
    """Prompts `B P`, or sources `B S` padded at the end."""
    n_tokens: int
    pad: int | None = None
    """Padding id of sources; None for a GPT."""
    device: str = "cpu"


Problem = Training | Writing


def save_problem(folder: Path, problem: Problem) -> None:
    """Save a problem in a folder that holds its weights."""
    (folder / FILE).write_bytes(pickle.dumps(problem))


def load_problem(folder: Path) -> Any:
    """Load the problem that `save_problem` wrote."""
    return pickle.loads((folder / FILE).read_bytes())
