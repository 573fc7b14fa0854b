"""Writing in JAX: jaxformer's own calls."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.bench.problems import START, WEIGHTS, Writing
from jaxformer.config.settings import BeamConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.decoding import generate, translate_beam
from jaxformer.models import abstract

ROWS = 64
"""Most sources that are translated at once, as by `jaxformer translate`."""


class Jaxformer:
    """The likeliest tokens, or those that a beam finds."""

    def __init__(self, folder: Path, problem: Writing, count: int):
        self.problem, self.model = problem, load_weights(folder / WEIGHTS, abstract(problem.model))

    def check(self) -> list[int]:
        """The ids that are written."""
        return self.write().ravel().tolist()

    def write(self) -> Any:
        """All of them."""
        problem = self.problem
        if problem.pad is None:
            return generate(self.model, problem.prompts, problem.n_tokens)
        chunks = [problem.prompts[first : first + ROWS] for first in range(0, len(problem.prompts), ROWS)]
        return np.concatenate([self.search(sources) for sources in chunks])

    def search(self, sources: np.ndarray) -> np.ndarray:
        """What a beam finds for these sources."""
        found = translate_beam(
            self.model, sources, self.problem.n_tokens, BeamConfig(), start=START, eos=None, valid=sources != self.problem.pad
        )
        return found.tokens[:, 0]

    def warm_up(self) -> None:
        """Everything was compiled by the check."""

    def run(self) -> None:
        """One round."""
        self.write()

    def figures(self) -> dict[str, Any]:
        """What else is worth noting."""
        return {}
