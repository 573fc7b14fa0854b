"""Training on both sides, step beside step: the same weights, the same batches, the same units dropped.

learning = TrainingSpec(
    batches=[(inputs, targets), ...],
    torch_loss=lambda model, inputs, targets: F.cross_entropy(model(inputs), targets),
    jax_loss=lambda model, inputs, targets: optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean(),
    torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
    jax_optimizer=optax.adamw(1e-3, weight_decay=0.01),
)
course = compare_training(torch_model, jax_model, learning, rules)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.errors import ParityError
from jaxformer.parity.explain.optimizer_steps import Settings, explain_step
from jaxformer.parity.explain.search import cause_of
from jaxformer.parity.match.one_sided import OneSided
from jaxformer.parity.numerics.float32_tables import NO_TABLES, Tables
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import LOSS, NULL_GRADIENT, PARAMETER, TOLERANCES, host, rms
from jaxformer.parity.probe.parameters import frozen_in
from jaxformer.parity.report.data import Stage, Step
from jaxformer.parity.training.shared_dropout import check_masks
from jaxformer.parity.training.spec import TrainingSpec
from jaxformer.parity.training.trained_alone import Alone, still_in_jax
from jaxformer.parity.training.trainers import JaxSide, StepSnapshot, TorchSide

Arrays = Mapping[str, np.ndarray]
"""By torch's names."""

ONE_STEP = 1e-9
"""Tier A: the largest difference after one optimizer step, in learning rates."""
RATE = 1e-13
"""Tier A: the largest difference of a learning rate, as a part of the largest of them; torch reaches some by recurrence."""
SAME = "the gradients are equal"
"""So the optimizers differ; what follows says in what."""
EXPLAINED = 1e-6
"""The largest relL2 at which another step counts as explained."""


class TrainingResult(NamedTuple):
    """What came of it."""

    stages: list[Stage]
    """loss, optimizer, schedule where both sides have one, and train."""
    steps: list[Step]
    nulls: list[str]
    """Tensors with entries whose gradient was null on the whole way, which are not compared: Adam turns rounding noise into
    steps of up to a learning rate."""
    buffers: list[str]
    """torch's that training changes, as running statistics, which are not compared either."""

    @property
    def not_covered(self) -> list[str]:
        """All that is not compared, in words."""
        nulls = [f"{name} in training: null gradients" for name in self.nulls]
        return nulls + [f"{name} in training: a buffer, not compared there" for name in self.buffers]


def compare_training(
    torch_model: Any,
    jax_model: PyTree,
    learning: TrainingSpec,
    rules: Family = TWIN,
    tables: Tables = NO_TABLES,
    alone: Sequence[OneSided] = (),
) -> TrainingResult:
    """Train copies of both models in float64 (tier A), in training mode, from torch's weights; what the JAX code computes of
    torch's `tables`, it has from torch. `alone` are parameters that one side has none of.

    A JAX model is any tree with float arrays as its parameters: an NNX module, or a dict of Linen's. What torch drops out is
    what JAX drew. Raises ParityError where the sides cannot drop the same units, and ConversionError where weights do not fit.
    """
    with fresh_traces(tables), jax_float64(tables):
        weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
        frozen = frozen_in(torch_model)
        still = still_in_jax(jax_model, rules, frozen)
        theirs, ours = TorchSide(torch_model, learning), JaxSide(jax_model, weights, learning, rules, alone=alone, still=still)
        apart = Alone(frozen, alone, weights)
        judge, drawn = Judge(weights, theirs.settings()), []
        for number, batches in enumerate(learning.steps()):
            masks, rates = ours.masks(number, batches), theirs.rates()
            if number < 2:
                drawn += chain(*masks)
                check_masks(drawn)
            both = apart.see(theirs.step(batches, masks), ours.step(number, batches))
            judge.see({name: rate for name, rate in rates.items() if name in both[0].parameters}, *both)
            if learning.jax_schedule is not None:
                judge.rates.append((next(iter(rates.values())), float(learning.jax_schedule(jnp.int64(number)))))
        course = judge.course(theirs.changed_buffers())
        noise = NULL_GRADIENT * rms(steep for steep, _ in judge.steepest.values())
        return course._replace(stages=apart.told(course.stages, noise))


@contextmanager
def fresh_traces(tables: Tables) -> Iterator[None]:
    """JAX keeps what it has traced of a jitted function: no table of torch's may be in there before, nor be left in there."""
    if not tables.held:
        yield
        return
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def check_course(course: TrainingResult) -> None:
    """ParityError for the first stage that is not equal."""
    for stage in course.stages:
        if stage.status != "equal":
            raise ParityError(f"{stage.name}: {stage.says}")


class Judge:
    """Sees both sides after each step."""

    def __init__(self, weights: Arrays, settings: Settings | None):
        self.settings, self.before = settings, weights
        self.past: list[Arrays] = []
        """torch's gradients up to the first step that moves anything."""
        self.steps: list[Step] = []
        self.rates: list[tuple[float, float]] = []
        """torch's and ours."""
        self.steepest: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        """The largest gradient of each single parameter so far, in absolute value, of torch and of ours."""
        self.null: dict[str, np.ndarray] = {}
        self.found: dict[str, Stage] = {}
        self.setting = ""
        """In what the first step differs, where formulas tell, however little that is."""

    def see(self, rates: Mapping[str, float], theirs: StepSnapshot, ours: StepSnapshot) -> None:
        """A step of both; `rates` are torch's, by parameter."""
        for name, theirs_now in theirs.gradients.items():
            torch_steep, jax_steep = self.steepest.get(name, (0.0, 0.0))
            now = np.maximum(torch_steep, np.abs(theirs_now)), np.maximum(jax_steep, np.abs(ours.gradients[name]))
            self.steepest[name] = now
        self.null = self._null()
        gaps = self._gaps(ours.parameters, theirs.parameters)
        name, off = worst({name: part(gap, theirs.parameters[name]) for name, gap in gaps.items()})
        error = part(abs(ours.loss - theirs.loss), np.array(theirs.loss))
        step = f"step {len(self.steps)}"
        losses = f"{step}: {theirs.loss:.9g} in torch, {ours.loss:.9g} in jax, relative"
        if not self.steps:
            self.found["loss"] = judged("loss", losses, error, TOLERANCES["loss"][0])
        if "optimizer" not in self.found:
            self.past.append(theirs.gradients)
        if "optimizer" not in self.found and any(rates.values()):
            self.found["optimizer"] = self._first_move(step, rates, gaps, theirs, ours)
        if "train" not in self.found and not error <= LOSS:
            self.found["train"] = judged("train", f"loss of {losses}", error, LOSS)
        if "train" not in self.found and not off <= PARAMETER:
            self.found["train"] = judged("train", f"{step}: {name}, max/rms", off, PARAMETER)
        self.steps.append(Step(len(self.steps), theirs.loss, error, off))
        self.before = theirs.parameters

    def course(self, buffers: list[str]) -> TrainingResult:
        """What was seen, in stages; and torch's buffers that have changed."""
        nulls = [name for name, null in self.null.items() if null.any()]
        still = Stage("optimizer", "failed", "torch's learning rate is 0 at every step: nothing moves")
        loss, off = (max(values) for values in zip(*((s.loss_error, s.parameter_error) for s in self.steps), strict=True))
        lines = f"loss {loss:.1e} (line {LOSS:.0e}), parameters {off:.1e} (line {PARAMETER:.0e})"
        equal = Stage("train", "equal", f"{len(self.steps)} steps: {lines}, {len(nulls)} tensors with null gradients")
        schedule = [self._schedule()] if self.rates else []
        optimizer, train = self.found.get("optimizer", still), self.found.get("train", equal)
        if optimizer.status == "equal" and train.status == "different" and self.setting:
            optimizer = Stage("optimizer", "different", f"{optimizer.says}, but it grows: {self.setting}")
        stages = [self.found["loss"], optimizer, *schedule, train]
        return TrainingResult(stages, self.steps, nulls, buffers)

    def _null(self) -> dict[str, np.ndarray]:
        """Where a gradient was never more than rounding noise around zero, on both sides; True = null."""
        squares = sum(float(np.square(theirs).sum()) for theirs, _ in self.steepest.values())
        noise = NULL_GRADIENT * np.sqrt(squares / sum(theirs.size for theirs, _ in self.steepest.values()))
        steepest = {name: np.maximum(*both) for name, both in self.steepest.items()}
        return {name: (steep > 0) & (steep <= noise) for name, steep in steepest.items()}

    def _gaps(self, ours: Arrays, theirs: Arrays) -> dict[str, float]:
        """The largest difference in each tensor, but for null entries."""
        return {name: float(np.abs(ours[name] - theirs[name])[~self.null[name]].max(initial=0.0)) for name in theirs}

    def _first_move(
        self, step: str, rates: Mapping[str, float], gaps: Mapping[str, float], theirs: StepSnapshot, ours: StepSnapshot
    ) -> Stage:
        """The optimizer alone: of the gradient that both sides have, or else it says that they have not."""
        largest = max(rates.values())
        name, off = worst({name: gap / (rates.get(name) or largest) for name, gap in gaps.items()})
        found = judged("optimizer", f"{step}: {name} off, in learning rates, by", off, ONE_STEP)
        moves = self._moves(rates, theirs, ours)
        self.setting = self._setting(rates, moves)
        if found.status == "equal":
            return found
        slopes = self._gaps(ours.gradients, theirs.gradients)
        name, off = worst({name: part(gap, theirs.gradients[name]) for name, gap in slopes.items()})
        if not off <= TOLERANCES["gradient"][1]:
            return replace(found, says=f"{found.says}; the gradient is off already: {name}, max/rms {off:.1e}")
        return replace(found, says=f"{found.says}; {SAME}{self._why(rates, moves)}")

    def _kept(self, rates: Mapping[str, float]) -> dict[str, np.ndarray]:
        """The entries of each parameter that moves, but for null ones."""
        return {name: ~self.null[name] for name, rate in rates.items() if rate}

    def _moves(self, rates: Mapping[str, float], theirs: StepSnapshot, ours: StepSnapshot) -> tuple[np.ndarray, np.ndarray]:
        """torch's and ours, in learning rates."""
        kept, before = self._kept(rates), self.before

        def moves(after: Arrays) -> np.ndarray:
            return np.concatenate([((after[name] - before[name]) / rates[name])[own] for name, own in kept.items()])

        return moves(theirs.parameters), moves(ours.parameters)

    def _setting(self, rates: Mapping[str, float], moves: tuple[np.ndarray, np.ndarray]) -> str:
        """In which setting of an optimizer that is known the steps differ."""
        if self.settings is None:
            return ""
        return cause_of(explain_step, self.settings, self.past, self.before, moves, self._kept(rates))

    def _why(self, rates: Mapping[str, float], moves: tuple[np.ndarray, np.ndarray]) -> str:
        """What explains another step from the same gradient, in words; '' where nothing simple does."""
        if self.setting:
            return f"; {self.setting}"
        torch_moves, jax_moves = moves
        held = np.concatenate([self.before[name][own] for name, own in self._kept(rates).items()])
        decay = multiple(jax_moves - torch_moves, held)
        if decay is not None:
            return f"; jax decays weights by {abs(decay):.6g} {'less' if decay > 0 else 'more'}"
        further = multiple(jax_moves - torch_moves, torch_moves)
        return "" if further is None else f"; jax moves {1 + further:.9g} times as far"

    def _schedule(self) -> Stage:
        """The learning rates of all steps."""
        theirs, ours = np.array(self.rates).T
        off = np.abs(ours - theirs) / (np.abs(theirs).max() or 1.0)
        crossed = ~(off <= RATE)
        step = int(crossed.argmax() if crossed.any() else off.argmax())
        says = f"step {step}: {theirs[step]:.9g} in torch, {ours[step]:.9g} in jax; of the largest, that is off by"
        return judged("schedule", says, float(off[step]), RATE)


def judged(name: str, says: str, value: float, line: float) -> Stage:
    """A stage that is equal up to its line."""
    return Stage(name, "equal" if value <= line else "different", f"{says} {value:.1e} (line {line:.0e})")


def part(gap: float, of: np.ndarray) -> float:
    """A gap over the rms of what it is in."""
    rms = np.sqrt(np.mean(np.square(of)))
    return float(gap / rms) if rms else (np.inf if gap else 0.0)


def worst(values: Mapping[str, float]) -> tuple[str, float]:
    """The largest and its name; NaN counts as the largest."""
    name = list(values)[int(np.argmax(list(values.values())))]
    return name, values[name]


def multiple(array: np.ndarray, of: np.ndarray) -> float | None:
    """c where array = c * of, but for a part in a million."""
    size = np.linalg.norm(of)
    c = float(array @ of / size**2) if size else 0.0
    return c if np.linalg.norm(array - c * of) <= EXPLAINED * np.linalg.norm(array) else None
