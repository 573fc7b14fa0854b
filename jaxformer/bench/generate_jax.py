"""Text generation in JAX, by jaxformer's own calls."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.bench.limits import device_memory
from jaxformer.bench.problems import START, WEIGHTS, Writing
from jaxformer.config.settings import BeamConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.decoding import generate, translate_beam
from jaxformer.models import abstract

ROWS = 64
"""Maximum number of sources in a batch, as in `jaxformer translate`."""


class Jaxformer:
    """jaxformer's side: greedy tokens, or those of beam search."""

    def __init__(self, folder: Path, problem: Writing, count: int):
        self.problem, self.model = problem, load_weights(folder / WEIGHTS, abstract(problem.model))

    def check(self) -> list[int]:
        """Return the ids that are written."""
        return self.write().ravel().tolist()

    def write(self) -> Any:
        """Write all texts or targets."""
        problem = self.problem
        if problem.pad is None:
            return generate(self.model, problem.prompts, problem.n_tokens)
        chunks = [problem.prompts[first : first + ROWS] for first in range(0, len(problem.prompts), ROWS)]
        return np.concatenate([self.search(sources) for sources in chunks])

    def search(self, sources: np.ndarray) -> np.ndarray:
        """Run beam search on these sources."""
        found = translate_beam(
            self.model, sources, self.problem.n_tokens, BeamConfig(), start=START, eos=None, valid=sources != self.problem.pad
        )
        return found.tokens[:, 0]

    def warm_up(self) -> None:
        """Do nothing: the check has compiled everything."""

    def run(self) -> None:
        """Run one round."""
        self.write()

    def figures(self) -> dict[str, Any]:
        """Return the memory of an accelerator."""
        return device_memory()
