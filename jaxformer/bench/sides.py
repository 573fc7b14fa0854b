"""The class of every side, each imported in the process that runs it. Imports neither jax nor torch."""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from jaxformer.bench.items import Group
from jaxformer.bench.peers import JAXFORMER
from jaxformer.bench.problems import Problem, load_problem


class Side(Protocol):
    """One side of a comparison, with its model loaded."""

    def check(self) -> list[float] | list[int]:
        """What has to be equal on all sides before anything is timed: a loss, or the ids that are written."""
        ...

    def warm_up(self) -> None:
        """Whatever comes once."""
        ...

    def run(self) -> None:
        """One round, done when it returns."""
        ...

    def figures(self) -> dict[str, Any]:
        """What else is worth noting, after the last round."""
        ...


SIDES = {
    "train": {
        JAXFORMER: "train_jax:Jaxformer",
        "flax-nnx": "train_jax:FlaxNNX",
        "twin": "train_torch:Twin",
        "torch": "train_torch:Best",
        "torch-compile": "train_torch:Compiled",
    },
    "generate": {
        JAXFORMER: "generate_jax:Jaxformer",
        "twin": "generate_torch:Twin",
        "torch": "generate_torch:Best",
        "transformers": "generate_torch:Transformers",
    },
}
"""Group -> peer -> module of this package and class."""


def make_side(group: Group, peer: str, folder: Path, count: int) -> Side:
    """A side, made from the problem in the folder."""
    module, name = SIDES[group][peer].split(":")
    problem: Problem = load_problem(folder)
    return getattr(import_module(f"jaxformer.bench.{module}"), name)(folder, problem, count)
