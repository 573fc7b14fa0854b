"""Search for mutations that leave torch's values as they are and give jax's gradients: values do not show, for example, the
factor of advantages whose ratio of probabilities is 1."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from jaxformer.parity.diagnose.backward import Backward
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.search import Search
from jaxformer.parity.diagnose.solve import off
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.trace.torch_hooks import thawed

ROUND = 3
"""Largest number of digits of a round number."""


@dataclass
class EqualValues(Search):
    """Search in which the array is the gradient that `backward` gives, of calls whose values stay as they are."""

    backward: Backward = field(kw_only=True)
    rivals: ClassVar[int] = 4

    def _tried(self, proposal: Proposal, found: list[Candidate]) -> Candidate | None:
        """Accept a number that was solved for only if it is round: where a factor alone is wrong, many numbers give it."""
        candidate = super()._tried(proposal, found)
        value = candidate.mutation.value if candidate and proposal.free else None
        return candidate if value is None or float(f"{value:.{ROUND}g}") == value else None

    def _run(self, proposal: Proposal) -> np.ndarray | None:
        """Replay torch's code with a mutation, and return the gradient; None if a value changes, too."""
        if off(super()._run(proposal), self.replay.wanted) > EXPLAINED:
            return None
        self.budget.spend(self.replay.cost)
        return self.backward.gradient(proposal.edit())

    def _is_certain(self, fixed: Proposal, *, solved: bool) -> bool:
        return True  # it gives jax's gradient


def explain_equal_values(replay: Replay, backward: Backward, session: Session) -> Diagnosis:
    """Find mutations that give jax's gradient, and torch's values, by replays of the call's values and of its gradient."""
    if not replay.begins:
        return Diagnosis()
    backward.model = thawed(replay.model)  # edits are of this model
    replay.operations = replay.listed  # also those that no value depends on
    with Budget(session) as budget:
        return EqualValues(replay, backward.torch, backward.jax, budget, backward=backward).diagnosis()
