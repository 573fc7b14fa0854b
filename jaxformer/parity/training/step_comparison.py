"""Comparison of training after each step: the losses, the first move of the parameters, the learning rates."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import factor_between, round_number
from jaxformer.parity.diagnose.explainers import attempt
from jaxformer.parity.diagnose.formulas.optimizer_course import Past, Settings, course_of, flat
from jaxformer.parity.diagnose.formulas.optimizer_numbers import explain_number
from jaxformer.parity.diagnose.formulas.optimizer_steps import MULTIPLE, explain_moves, explain_schedule, explain_step
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.numerics.metrics import EXPLAINED, LOSS, NULL_GRADIENT, PARAMETER, TOLERANCES, rms
from jaxformer.parity.report.data import Stage, Step
from jaxformer.parity.report.text import count
from jaxformer.parity.training.trainers import StepSnapshot

SAME = 1e-12


def explain_loss(torch: StepSnapshot, jax: StepSnapshot) -> str:
    """Explain a difference of losses by a factor, or return '' if the gradients are not multiples of each other.

    Example: 'jax's loss is 0.75 times torch's, and so are its gradients'.
    """
    both = [np.concatenate([side.gradients[name].ravel() for name in torch.gradients]) for side in (jax, torch)]
    factor, residual = factor_between(*both)
    if not residual <= EXPLAINED or not np.isfinite(jax.loss):
        return ""
    number = say(round_number(factor))
    if abs(jax.loss - factor * torch.loss) <= SAME * abs(jax.loss):
        return f"jax's loss is {number} times torch's, and so are its gradients" if abs(factor - 1) > EXPLAINED else ""
    added = say(round_number(jax.loss - factor * torch.loss))
    if abs(factor - 1) <= EXPLAINED:
        return f"jax's loss is torch's plus {added} in this step, with the same gradients"
    return f"jax's gradients are {number} times torch's; its loss is that many times torch's, plus {added}"


Arrays = Mapping[str, np.ndarray]
"""Arrays by torch's names."""

ONE_STEP = 1e-9
"""Tolerance in tier A: the largest difference of a parameter after one optimizer step, as a multiple of the learning rate."""
GRADIENT = 1e-9
"""Tolerance (max/rms) of the first gradient where the losses are equal; the check of gradients is closer."""
RATE = 1e-13
"""Tolerance in tier A: the largest difference of a learning rate, relative to the largest rate; torch computes some by
recurrence."""
LONGEST, MOST_KEPT = 20, 2 * 10**8
"""Most steps that are kept to find the one at which the optimizers part, and most entries in all of them (fewer steps if
large)."""
STILL = "jax moves where torch's learning rate is 0"
EQUAL_GRADIENTS = "the gradients are equal"
"""Finding that the optimizers differ, not the gradients; the text after it says how."""


class TrainingResult(NamedTuple):
    """Result of a comparison of training."""

    stages: list[Stage]
    """Stages loss, optimizer, schedule (if both sides have one) and train."""
    steps: list[Step]
    nulls: list[str]
    """Tensors with entries whose gradient was null at every step.

    Such entries are not compared: Adam turns rounding noise into steps of up to a learning rate.
    """
    buffers: list[str]
    """torch's buffers that training changes, such as running statistics, and that are not compared either."""

    @property
    def not_covered(self) -> list[str]:
        """Tensors and buffers that are not compared, in words."""
        nulls = [f"{name} in training: null gradients" for name in self.nulls]
        return nulls + [f"{name} in training: a buffer, not compared there" for name in self.buffers]


class Parting(NamedTuple):
    """First step whose moves differ, and its cause."""

    step: int
    cause: str
    """Cause of the difference; '' if the gradients differ too, or no formula explains it."""
    rate: float | None
    """jax's learning rate, if it is the cause."""


class StepComparison:
    """Comparison of both sides after each step; it keeps the first difference of each kind."""

    def __init__(self, weights: Arrays, settings: Settings | None):
        """Begin with `weights` before the first step, and with the `settings` of torch's optimizer, if they are known."""
        self.settings, self.before, self.ours_before = settings, weights, weights
        self.past: list[Past] = []
        """torch's gradients of each step, jax's of its batches, and torch's weights before it, up to the step at which the
        optimizers part."""
        self.steps: list[Step] = []
        self.schedule: list[tuple[float, float]] = []
        """Learning rates of torch and of jax at each step."""
        self.largest: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        """Largest absolute gradient of each entry so far, of torch and of jax."""
        self.noise = 0.0
        """Size up to which gradients are rounding noise around zero."""
        self.null: dict[str, np.ndarray] = {}
        """True where an entry's gradient never exceeded the noise on either side."""
        self.found: dict[str, Stage] = {}
        self.cause = ""
        """Optimizer setting in which the first steps differ, if formulas tell, however small the difference is."""
        self.parted: Parting | None = None
        self.rates: list[float] = []
        """torch's first learning rate at each step."""

    def add(self, rates: Mapping[str, float], torch: StepSnapshot, jax: StepSnapshot) -> None:
        """Compare one step of both sides; `rates` are torch's learning rates, by parameter."""
        for name, gradient in torch.gradients.items():
            before = self.largest.get(name, (0.0, 0.0))
            self.largest[name] = np.maximum(before[0], np.abs(gradient)), np.maximum(before[1], np.abs(jax.gradients[name]))
        self.noise = NULL_GRADIENT * rms(gradient for gradient, _ in self.largest.values())
        largest = {name: np.maximum(*both) for name, both in self.largest.items()}
        self.null = {name: (array > 0) & (array <= self.noise) for name, array in largest.items()}
        gaps = self._largest_gaps(jax.parameters, torch.parameters)
        name, error = largest_of({name: over_rms(gap, torch.parameters[name]) for name, gap in gaps.items()})
        loss_error = over_rms(abs(jax.loss - torch.loss), np.array(torch.loss))
        step = f"step {len(self.steps)}"
        losses = f"{step}: {torch.loss:.9g} in torch, {jax.loss:.9g} in jax, relative"
        if not self.steps:
            stage = stage_of("loss", losses, loss_error, TOLERANCES["loss"][0])
            cause = attempt("a factor", explain_loss, torch, jax) if stage.status == "different" else ""
            self.found["loss"] = replace(stage, says="; ".join(filter(None, (stage.says, cause))))
            tensor, gap = self._largest_gradient_gap(torch, jax)
            if stage.status == "equal" and not gap <= GRADIENT:
                says = f"{step}: the losses are equal, but not their gradients: {tensor}, max/rms {gap:.1e}"
                self.found["loss"] = Stage("loss", "different", says)
        self.rates.append(next(iter(rates.values())))
        size = sum(array.size for array in self.before.values())
        longest = min(LONGEST, max(1, MOST_KEPT // ((2 + len(jax.parts)) * size)))
        if self.parted is None and "train" not in self.found and len(self.past) < longest:
            self.past.append(Past(torch.gradients, jax.parts, self.before))
            if any(rates.values()):
                self._moved(rates, gaps, torch, jax)
            elif any(not np.array_equal(array, self.ours_before[name]) for name, array in jax.parameters.items()):
                self.parted = Parting(len(self.steps), STILL, None)
                self.found.setdefault("optimizer", Stage("optimizer", "different", f"{step}: {STILL}"))
        if "train" not in self.found and not loss_error <= LOSS:
            self.found["train"] = stage_of("train", f"loss of {losses}", loss_error, LOSS)
        if "train" not in self.found and not error <= PARAMETER:
            self.found["train"] = stage_of("train", f"{step}: {name}, max/rms", error, PARAMETER)
        self.steps.append(Step(len(self.steps), torch.loss, loss_error, error))
        self.before, self.ours_before = torch.parameters, jax.parameters

    def result(self, buffers: list[str]) -> TrainingResult:
        """Summarise all steps; `buffers` are torch's that have changed."""
        nulls = [name for name, null in self.null.items() if null.any()]
        no_move = Stage("optimizer", "failed", "torch's learning rate is 0 at every step: nothing moves")
        loss, error = (max(values) for values in zip(*((s.loss_error, s.parameter_error) for s in self.steps), strict=True))
        errors = f"loss {loss:.1e} (tolerance {LOSS:.0e}), parameters {error:.1e} (tolerance {PARAMETER:.0e})"
        steps, tensors = count(len(self.steps), "step"), count(len(nulls), "tensor")
        equal = Stage("train", "equal", f"{steps}: {errors}, {tensors} with null gradients")
        optimizer, train = self.found.get("optimizer", no_move), self.found.get("train", equal)
        if optimizer.status == "equal" and train.status == "different" and (cause := self._later_cause()):
            optimizer = Stage("optimizer", "different", f"{optimizer.says}, {cause}")
        optimizer = replace(optimizer, says=optimizer.says + self._rate())
        schedule = [self._schedule_stage()] if self.schedule else []
        return TrainingResult([self.found["loss"], optimizer, *schedule, train], self.steps, nulls, buffers)

    def _largest_gaps(self, jax: Arrays, torch: Arrays) -> dict[str, float]:
        """Largest |J - T| in each tensor, null entries left out."""
        return {name: float(np.abs(jax[name] - torch[name])[~self.null[name]].max(initial=0.0)) for name in torch}

    def _largest_gradient_gap(self, torch: StepSnapshot, jax: StepSnapshot) -> tuple[str, float]:
        """Return the tensor whose gradients differ most, relative to their size, and that difference."""
        gaps = self._largest_gaps(jax.gradients, torch.gradients)
        return largest_of({name: over_rms(gap, torch.gradients[name]) for name, gap in gaps.items()})

    def _moved(self, rates: Mapping[str, float], gaps: Mapping[str, float], torch: StepSnapshot, jax: StepSnapshot) -> None:
        """Compare the moves of a step, for the first step and the one at which the optimizers part, and explain the
        difference."""
        first, number, highest = "optimizer" not in self.found, len(self.steps), max(rates.values())
        name, error = largest_of({name: gap / (rates.get(name) or highest) for name, gap in gaps.items()})
        stage = stage_of("optimizer", f"step {number}: {name} differs, in learning rates, by", error, ONE_STEP)
        if not first and stage.status == "equal":
            return
        kept = {name: ~self.null[name] for name, rate in rates.items() if rate}
        course = attempt("an optimizer's course", course_of, self.settings, self.past, rates, kept)
        sides = (torch.parameters, self.before), (jax.parameters, self.ours_before)
        moves = tuple((flat(after, kept) - flat(before, kept)) / flat(rates, kept) for after, before in sides)
        cause = attempt("an optimizer's setting", explain_step, self.settings, course, moves) if self.settings else ""
        if self.settings and course and not cause:
            cause = attempt("an optimizer's number", explain_number, self.settings, course, moves)
        if first:
            self.found["optimizer"], self.cause = stage, cause or ""
            if stage.status == "equal":
                return
        name, error = self._largest_gradient_gap(torch, jax)
        equal, rate = error <= TOLERANCES["gradient"][1], None
        if equal and not cause and course:
            cause, rate = attempt("a multiple", explain_moves, moves, course, kept) or ("", None)
        self.parted = Parting(number, cause if equal and cause else "", rate)
        if first:
            differs = f"the gradient differs already: {name}, max/rms {error:.1e}"
            says = [stage.says, EQUAL_GRADIENTS if equal else differs, cause if equal else ""]
            self.found["optimizer"] = replace(stage, says="; ".join(filter(None, says)))

    def _later_cause(self) -> str:
        """Cause of a difference that begins after the first move, as far as formulas tell."""
        if self.cause:
            return f"but it grows: {self.cause}"
        if self.parted is None or not self.parted.cause:
            return ""
        return f"but at step {self.parted.step} the optimizers part, and {EQUAL_GRADIENTS}: {self.parted.cause}"

    def _rate(self) -> str:
        """jax's learning rate, if it is the cause, and the step at which torch has it."""
        if self.parted is None or self.parted.rate is None:
            return ""
        rate = self.parted.rate
        says = f": a learning rate of {rate:.9g} where torch has {self.rates[self.parted.step]:.9g}"
        others = [i for i in range(len(self.rates)) if i != self.parted.step]
        where = [i for i in others if abs(self.rates[i] - rate) <= MULTIPLE * rate]
        return says + (f"; torch has that at step {where[0]}" if where else "")

    def _schedule_stage(self) -> Stage:
        """Compare the learning rates of all steps: the first that differs, or the largest difference."""
        torch, jax = np.array(self.schedule).T
        errors = np.abs(jax - torch) / (np.abs(torch).max() or 1.0)
        wrong = ~(errors <= RATE)
        step = int(wrong.argmax() if wrong.any() else errors.argmax())
        says = f"step {step}: {torch[step]:.9g} in torch, {jax[step]:.9g} in jax; as a part of the largest, the difference is"
        stage = stage_of("schedule", says, float(errors[step]), RATE)
        cause = attempt("a schedule", explain_schedule, torch, jax) if wrong.any() else ""
        return replace(stage, says="; ".join(filter(None, (stage.says, cause))))


def stage_of(name: str, says: str, error: float, tolerance: float) -> Stage:
    """Make a stage that is equal if the error is within its tolerance."""
    status = "equal" if error <= tolerance else "different"
    return Stage(name, status, f"{says} {error:.1e} (tolerance {tolerance:.0e})")


def over_rms(gap: float, array: np.ndarray) -> float:
    """Difference as a multiple of an array's rms."""
    top = float(np.abs(array).max(initial=0.0))
    size = top * float(np.sqrt(np.mean(np.square(array / top)))) if 0 < top < np.inf else top
    return gap / size if size else (np.inf if gap else 0.0)


def largest_of(values: Mapping[str, float]) -> tuple[str, float]:
    """Name and value of the largest entry; NaN counts as the largest."""
    name = list(values)[int(np.argmax(list(values.values())))]
    return name, values[name]
