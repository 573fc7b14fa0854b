"""What all sides of a measurement share: configurations, inputs, and weights in a folder. Imports neither jax nor torch."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxformer.config.models import ModelConfig
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig

Arrays = tuple[np.ndarray, ...]
WEIGHTS = "weights.safetensors"
"""In the twin's layout."""
GPT2 = "model.safetensors"
"""In that of transformers."""
START = 1
"""What a written target begins with; none ends before its last token."""
FILE = "problem.pickle"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model to be trained."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batches: list[Arrays]
    """Inputs and targets, or sources and targets; the first one is what every side has to lose the same on."""
    held_out: list[Arrays]
    draws: Literal["windows", "task", "ready"]
    """How jaxformer's step gets its batch, as in its recipe: windows of `text`, pairs of `task`, or the batches as they are."""
    text: np.ndarray | None = None
    """Token ids."""
    task: str = ""
    pad: int | None = None
    """The padding of pairs; None for a text."""
    smoothing: float = 0.0
    shapes: int = 1
    """Steps until every shape of a batch was there."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Writing:
    """A model that writes."""

    model: ModelConfig
    prompts: np.ndarray
    """`B P` ids, or sources `B S` with padding behind."""
    n_tokens: int
    pad: int | None = None
    """The padding of sources."""


Problem = Training | Writing


def save_problem(folder: Path, problem: Problem) -> None:
    """Beside its weights, in a folder of our own."""
    (folder / FILE).write_bytes(pickle.dumps(problem))


def load_problem(folder: Path) -> Any:
    """What `save_problem` wrote."""
    return pickle.loads((folder / FILE).read_bytes())
