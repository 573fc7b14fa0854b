"""Training on both sides, step beside step: the same weights, the same batches, the same units dropped.

spec = TrainingSpec(
    batches=[(inputs, targets), ...],
    torch_loss=lambda model, inputs, targets: F.cross_entropy(model(inputs), targets),
    jax_loss=lambda model, inputs, targets: optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean(),
    torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
    jax_optimizer=optax.adamw(1e-3, weight_decay=0.01),
)
result = compare_training(torch_model, jax_model, spec, rules)

Beside what is trained: torch's buffers and parameters that training changes on one side only, or differently, step after step.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family, weights_of
from jaxformer.errors import ParityError
from jaxformer.parity.attribute.trained_alone import FREEZES, HAS, LEAVES_OUT
from jaxformer.parity.diagnose.by_arrays.values import factor_between
from jaxformer.parity.diagnose.formulas.optimizer_course import flat
from jaxformer.parity.numerics.float32_tables import NO_TABLES, Tables
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import EXPLAINED, NULL_GRADIENT, PARAMETER, check_float32, host, rms
from jaxformer.parity.pairing.buffers import pair_statistics, path_of, typed_constants
from jaxformer.parity.pairing.modules import parameter_pairs
from jaxformer.parity.pairing.placement import OneSided
from jaxformer.parity.probe import frozen_in
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.text import count
from jaxformer.parity.training.shared_dropout import check_masks
from jaxformer.parity.training.step_comparison import StepComparison, TrainingResult
from jaxformer.parity.training.trainers import JaxTrainer, StepSnapshot, TorchTrainer, TrainingSpec
from jaxformer.pytree import named_leaves

Arrays = Mapping[str, np.ndarray]
"""Arrays by torch's names."""


class RunningStatistics:
    """Comparison of running statistics after each step; it keeps the first difference.

    A JAX model that is a tree returns its new statistics after the loss; if it does not, nothing is compared.
    """

    def __init__(self, model: PyTree, rules: Family, before: Arrays):
        self.model, self.rules, self.before = model, rules, before
        self.pairs: dict[str, str] = {}
        """torch's name -> jax's name."""
        self.found: Stage | None = None
        self.steps, self.largest = 0, 0.0

    def add(self, theirs: Arrays, state: PyTree) -> None:
        """Compare one step: torch's buffers with the JAX arrays that are not trained."""
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
        """List the result's stage, or no stage if nothing is compared."""
        says = f"{count(len(self.pairs), 'buffer')}, max/rms {self.largest:.1e} (tolerance {PARAMETER:.0e})"
        return [self.found or Stage("running statistics", "equal", says)] if self.pairs else []

    def _pair(self, theirs: Arrays, leaves: Mapping[str, Any]) -> None:
        """Pair the buffers that torch changes with arrays that the JAX model holds or returns."""
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
        """Cause of the difference, from the first step."""
        if array_equal(ours, self.before[name]):
            return "jax leaves it as it was"
        factor, residual = factor_between(ours - self.before[name], theirs - self.before[name])
        return f"jax moves it {factor:.6g} times as far (residual {residual:.0e})" if residual <= EXPLAINED else ""


def array_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays are equal in float64; NaN equals NaN."""
    return np.array_equal(np.asarray(one, np.float64), np.asarray(other, np.float64), equal_nan=True)


DECAYS = "torch freezes {}; jax moves it, though its gradient is 0: leave it out of the weight decay"


def held_in_jax(model: PyTree, rules: Family, frozen: Container[str]) -> set[str]:
    """JAX arrays that torch freezes and that are not parameters by their type."""
    typed = typed_constants(model)
    layers = {name: leaf.shape[0] if rules.stacked(name) else 1 for name, leaf in weights_of(model, rules).items()}
    return {name for name, n in layers.items() if name in typed and all(it in frozen for it in rules.torch_names(name, n))}


class TrainedAlone:
    """Record of the parameters that only one side moves."""

    def __init__(self, frozen: Iterable[str], alone: Sequence[OneSided], weights: Mapping[str, np.ndarray]):
        self.says = dict.fromkeys(sorted(frozen), FREEZES)
        self.says |= {each.key: LEAVES_OUT if each.side == "torch" else HAS for each in alone}
        self.before = {**weights, **{each.key: each.value for each in alone}}
        self.largest: dict[str, float] = {}
        self.moved: set[str] = set()

    def split(self, theirs: StepSnapshot, ours: StepSnapshot) -> tuple[StepSnapshot, StepSnapshot]:
        """Record a step; return the snapshots of the parameters that both sides train."""
        for name, says in self.says.items():
            side = theirs if says == LEAVES_OUT else ours
            if name in side.parameters:
                size = float(np.abs(side.gradients[name]).max(initial=0.0))
                self.largest[name] = max(self.largest.get(name, 0.0), size)
                self.moved |= set() if np.array_equal(side.parameters[name], self.before[name]) else {name}
        names = [name for name in theirs.parameters if name in ours.parameters and name not in self.says]
        return _only(theirs, names), _only(ours, names)

    def added_to(self, stages: Sequence[Stage], noise: float) -> list[Stage]:
        """Add parameters that only one side trains to the first stage that differs, or to the last stage.

        Gradients below `noise` are not counted, because Adam turns them into steps too.
        """
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
    gradients, parameters, *parts = (
        {name: arrays[name] for name in names} for arrays in (snapshot.gradients, snapshot.parameters, *snapshot.parts)
    )
    return snapshot._replace(gradients=gradients, parameters=parameters, parts=parts)


MOST_STEPS = 50
"""Largest number of float32 steps: after more, rounding has grown so far that a comparison shows little."""


def check_training32(torch_model: Any, jax_model: PyTree, spec: TrainingSpec, rules: Family = TWIN) -> float:
    """Train both models in float32, and torch's in float64 too; return the largest ratio of an error to its tier B tolerance.

    The models are copied, and the same units are dropped. Raises ParityError above 1. Entries with null gradients are left out:
    their updates are rounding noise.
    """
    weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
    sides = TorchTrainer(torch_model, spec), TorchTrainer(torch_model, spec, float64=False)
    ours, snapshots = JaxTrainer(jax_model, weights, spec, rules, float64=False), []
    both = zip(spec.steps(), spec.steps(float64=False), range(MOST_STEPS), strict=False)
    for precise, low, number in both:
        masks = ours.masks(number, low)
        snapshots.append((sides[0].step(precise, masks), sides[1].step(low, masks), ours.step(number, low)))
    truth, theirs, mine = zip(*snapshots, strict=True)
    kept = not_null(truth)
    truth, theirs, mine = (changes(side, weights, kept) for side in (truth, theirs, mine))
    return max(check_float32(f"{what} in float32", mine[what], theirs[what], truth[what]) for what in truth)


def not_null(snapshots: Sequence[StepSnapshot]) -> dict[str, np.ndarray]:
    """Mask of the entries whose float64 gradient at some step exceeded rounding noise around zero."""
    names = snapshots[0].gradients
    largest = {name: np.max([np.abs(snapshot.gradients[name]) for snapshot in snapshots], 0) for name in names}
    noise = NULL_GRADIENT * rms(largest.values())
    return {name: array > noise for name, array in largest.items()}


def changes(
    snapshots: Sequence[StepSnapshot], weights: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Effects of training on one side: the losses, and the updates of the kept entries in the first step and in all steps."""
    found = {"losses": np.array([snapshot.loss for snapshot in snapshots])}
    for what, after in (("first step", snapshots[0].parameters), (f"{len(snapshots)} steps", snapshots[-1].parameters)):
        found[what] = flat(after, kept).astype(np.float64) - flat(weights, kept)
    return found


def compare_training(
    torch_model: Any,
    jax_model: PyTree,
    spec: TrainingSpec,
    rules: Family = TWIN,
    tables: Tables = NO_TABLES,
    alone: Sequence[OneSided] = (),
) -> TrainingResult:
    """Train copies of both models in float64 (tier A), in training mode, from torch's weights, and compare each step.

    A JAX model is any tree with float arrays as its parameters: an NNX module, or a dict of Linen's. JAX code that computes one
    of torch's `tables` gets torch's values. `alone` are parameters that one side does not have. torch drops the units that jax
    drew. Raises ParityError if the sides cannot drop the same units, and ConversionError if weights do not fit.
    """
    with fresh_traces(tables), jax_float64(tables):
        weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
        frozen = frozen_in(torch_model)
        held = held_in_jax(jax_model, rules, frozen)
        theirs = TorchTrainer(torch_model, spec)
        ours = JaxTrainer(jax_model, weights, spec, rules, alone=alone, held=held)
        trained_alone = TrainedAlone(frozen, alone, weights)
        comparison, drawn = StepComparison(weights, theirs.settings()), []
        statistics = RunningStatistics(jax_model, rules, theirs.held())
        for number, batches in enumerate(spec.steps()):
            masks, rates = ours.masks(number, batches), theirs.rates()
            if number < 2:
                drawn += chain(*masks)
                check_masks(drawn)
            both = trained_alone.split(theirs.step(batches, masks), ours.step(number, batches))
            comparison.add({name: rate for name, rate in rates.items() if name in both[0].parameters}, *both)
            statistics.add(theirs.held(), ours.rest)
            if spec.jax_schedule is not None:
                comparison.schedule.append((next(iter(rates.values())), float(spec.jax_schedule(jnp.int64(number)))))
        result = comparison.result([name for name in theirs.changed_buffers() if name not in statistics.pairs])
        stages = trained_alone.added_to(result.stages, comparison.noise)
        return result._replace(stages=[*stages[:-1], *statistics.stages(), *stages[-1:]])


@contextmanager
def fresh_traces(tables: Tables) -> Iterator[None]:
    """Clear JAX's cache of traced functions before and after, if there are tables.

    An earlier trace would not contain torch's tables, and a later call would still contain them.
    """
    if not tables.held:
        yield
        return
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def check_training(result: TrainingResult) -> None:
    """Raise ParityError for the first stage that is not equal."""
    for stage in result.stages:
        if stage.status != "equal":
            raise ParityError(f"{stage.name}: {stage.says}")
