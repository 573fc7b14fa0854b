"""Parameters that one side alone trains: torch freezes them, or the other side does not have them."""

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, weights_of
from jaxformer.parity.judge.trained_alone import FREEZES, HAS, LEAVES_OUT
from jaxformer.parity.match.buffers import typed_constants
from jaxformer.parity.match.one_sided import OneSided
from jaxformer.parity.report.data import Stage
from jaxformer.parity.training.trainers import StepSnapshot

DECAYS = "torch freezes {}; jax moves it, though its gradient is 0: leave it out of the weight decay"


def held_in_jax(model: PyTree, rules: Family, frozen: Container[str]) -> set[str]:
    """The JAX arrays that torch freezes, and that are not parameters by their type."""
    typed = typed_constants(model)
    layers = {name: leaf.shape[0] if rules.stacked(name) else 1 for name, leaf in weights_of(model, rules).items()}
    return {name for name, n in layers.items() if name in typed and all(it in frozen for it in rules.torch_names(name, n))}


class TrainedAlone:
    """Takes both sides after each step, and keeps what one side alone has moved."""

    def __init__(self, frozen: Iterable[str], alone: Sequence[OneSided], weights: Mapping[str, np.ndarray]):
        self.says = dict.fromkeys(sorted(frozen), FREEZES)
        self.says |= {each.key: LEAVES_OUT if each.side == "torch" else HAS for each in alone}
        self.before = {**weights, **{each.key: each.value for each in alone}}
        self.largest: dict[str, float] = {}
        self.moved: set[str] = set()

    def split(self, theirs: StepSnapshot, ours: StepSnapshot) -> tuple[StepSnapshot, StepSnapshot]:
        """Notes a step; returns what both sides train, to be compared."""
        for name, says in self.says.items():
            side = theirs if says == LEAVES_OUT else ours
            if name in side.parameters:
                size = float(np.abs(side.gradients[name]).max(initial=0.0))
                self.largest[name] = max(self.largest.get(name, 0.0), size)
                self.moved |= set() if np.array_equal(side.parameters[name], self.before[name]) else {name}
        names = [name for name in theirs.parameters if name in ours.parameters and name not in self.says]
        return _only(theirs, names), _only(ours, names)

    def added_to(self, stages: Sequence[Stage], noise: float) -> list[Stage]:
        """The stages; the first that differs, or else the last, says now what one side alone trains. Gradients below `noise`
        are not counted: Adam makes steps of them too."""
        said = []
        for name, says in self.says.items():
            flat = name in self.moved and self.largest[name] == 0 and says == FREEZES
            if name in self.moved and (flat or self.largest[name] > noise):
                said.append((DECAYS if flat else says).format(name.removeprefix(OneSided.JAX)))
        if not said:
            return list(stages)
        first = next((stage for stage in stages if stage.status != "equal"), stages[-1])
        more = [first.says] if first.status != "equal" else []
        found = Stage(first.name, "different", "; ".join([*said, *more]))
        return [found if stage is first else stage for stage in stages]


def _only(snapshot: StepSnapshot, names: Sequence[str]) -> StepSnapshot:
    gradients, parameters = ({name: arrays[name] for name in names} for arrays in (snapshot.gradients, snapshot.parameters))
    return snapshot._replace(gradients=gradients, parameters=parameters)
