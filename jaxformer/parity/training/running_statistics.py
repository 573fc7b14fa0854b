"""torch's buffers that training changes, as running statistics, beside jax's, step after step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.rules import Family
from jaxformer.parity.diagnose.by_arrays.values import factor_between
from jaxformer.parity.match.statistics import pair_statistics, path_of
from jaxformer.parity.numerics.metrics import EXPLAINED, PARAMETER
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.format import count
from jaxformer.parity.run.pair_modules import parameter_pairs
from jaxformer.pytree import named_leaves

Arrays = Mapping[str, np.ndarray]
"""By torch's names."""


class RunningStatistics:
    """Takes both sides after each step, and keeps what differed first. A JAX model that is a tree gives its new ones behind the
    loss; where it does not, nothing is compared."""

    def __init__(self, model: PyTree, rules: Family, before: Arrays):
        self.model, self.rules, self.before = model, rules, before
        self.pairs: dict[str, str] = {}
        """torch's -> jax's."""
        self.found: Stage | None = None
        self.steps, self.largest = 0, 0.0

    def add(self, theirs: Arrays, state: PyTree) -> None:
        """A step: torch's buffers, and the JAX arrays that are not trained."""
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(state).items() if name in self.rules.constants}
        if not self.steps:
            self._pair(theirs, leaves)
        for name, mine in self.pairs.items():
            ours = leaves[mine].reshape(theirs[name].shape)
            error = float(np.abs(ours - theirs[name]).max() / (np.sqrt(np.square(theirs[name]).mean()) or 1.0))
            self.largest = max(self.largest, error)
            if self.found is None and not error <= PARAMETER:
                says = f"step {self.steps}: {name}, max/rms {error:.1e} (tolerance {PARAMETER:.0e})"
                cause = self._cause(name, theirs[name], ours) if not self.steps else ""
                self.found = Stage("running statistics", "different", "; ".join(filter(None, (says, cause))))
        self.steps += 1

    def stages(self) -> list[Stage]:
        """One, where any are compared."""
        says = f"{count(len(self.pairs), 'buffer')}, max/rms {self.largest:.1e} (tolerance {PARAMETER:.0e})"
        return [self.found or Stage("running statistics", "equal", says)] if self.pairs else []

    def _pair(self, theirs: Arrays, leaves: Mapping[str, Any]) -> None:
        """Those that torch changes; the JAX model holds them, or has given new ones."""
        changed = {
            name: array.shape for name, array in theirs.items() if array.ndim and not array_equal(array, self.before[name])
        }
        held = {name: np.asarray(leaf) for name, leaf in named_leaves(self.model).items() if name in leaves}
        if isinstance(self.model, nnx.Module) or any(not array_equal(leaves[name], leaf) for name, leaf in held.items()):
            parameters = parameter_pairs(self.model, self.rules)
            found = pair_statistics(changed, self.model, leaves, parameters)
            paths = {path_of(name, self.model): name for name in leaves}
            self.pairs = {other: paths[mine] for mine, other in found.items()}

    def _cause(self, name: str, theirs: np.ndarray, ours: np.ndarray) -> str:
        """What the first step tells."""
        if array_equal(ours, self.before[name]):
            return "jax leaves it as it was"
        factor, residual = factor_between(ours - self.before[name], theirs - self.before[name])
        return f"jax moves it {factor:.6g} times as far (residual {residual:.0e})" if residual <= EXPLAINED else ""


def array_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """NaN is NaN."""
    return np.array_equal(np.asarray(one, np.float64), np.asarray(other, np.float64), equal_nan=True)
