"""Course of an optimizer up to a step, torch's settings, gradients and weights; and ways to clip a gradient."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

NOT_KNOWN = ("amsgrad", "maximize", "dampening")
"""Settings of torch.optim that no formula here covers."""


@dataclass(frozen=True)
class Settings:
    """Settings of torch's optimizer, common to all of its parameters but for weight decay."""

    kind: Literal["Adam", "RMSprop", "SGD"]
    epsilon: float
    betas: tuple[float, float]
    """Decay rates of the running means of the gradients and of their squares; RMSprop has the second alone."""
    share: float
    """Momentum of SGD and RMSprop."""
    nesterov: bool
    centered: bool
    decays: Mapping[str, float]
    """Weight decay of each parameter, by name."""
    decoupled: bool
    clip_norm: float | None
    accumulate: int


def settings_of(optimizer: Any, names: Mapping[Any, str], clip_norm: float | None, accumulate: int) -> Settings | None:
    """Read the settings of torch.optim's Adam, AdamW, RMSprop or SGD; None for other optimizers, and for groups that differ."""
    import torch

    kinds: tuple[Any, ...] = (torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD)
    kind = next((each.__name__ for each in kinds if isinstance(optimizer, each)), None)
    groups = optimizer.param_groups
    if kind is None or any(group.get(name) for group in groups for name in NOT_KNOWN):
        return None
    told = {_common(group) for group in groups}
    if len(told) > 1:
        return None
    ((epsilon, betas, share, nesterov, centered, decoupled),) = told
    decays = {names[parameter]: float(group["weight_decay"]) for group in groups for parameter in group["params"]}
    return Settings(kind, epsilon, betas, share, nesterov, centered, decays, decoupled, clip_norm, accumulate)


def _common(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Settings that all groups have to share, as `Settings` has them."""
    betas, switches = group.get("betas", (0.0, group.get("alpha", 0.0))), ("nesterov", "centered", "decoupled_weight_decay")
    return group.get("eps", 0.0), betas, group.get("momentum", 0.0), *(bool(group.get(name)) for name in switches)


class Given(NamedTuple):
    """Gradient that an optimizer is given at one step, of the entries that are compared."""

    whole: np.ndarray
    norm: float
    """Global norm, entries that are not compared included."""
    norms: np.ndarray
    """Norm of the tensor of each entry."""
    parts: Sequence[tuple[np.ndarray, float]]
    """Gradients of the batches that are accumulated, with their global norms; empty for one batch."""

    def times(self, factor: float) -> "Given":
        """Multiply the gradient by a positive factor."""
        parts = [(part * factor, norm * factor) for part, norm in self.parts]
        return Given(self.whole * factor, self.norm * factor, self.norms * factor, parts)

    def at(self, entries: slice) -> "Given":
        """Select some of the entries."""
        parts = [(part[entries], norm) for part, norm in self.parts]
        return Given(self.whole[entries], self.norm, self.norms[entries], parts)


@dataclass(frozen=True)
class Course:
    """Inputs of an optimizer up to a step; each vector has the entries that are compared."""

    gradients: Sequence[Given]
    """torch's gradients at each step up to this one."""
    weights: Sequence[np.ndarray]
    """Weights before each of these steps."""
    rates: np.ndarray
    """Learning rate of each entry at this step."""
    decays: np.ndarray
    """Weight decay of each entry."""
    matrices: np.ndarray
    """1 for entries of weights with more than one axis, 0 for others."""

    def at(self, entries: slice) -> "Course":
        """Select some of the entries."""
        weights = [array[entries] for array in self.weights]
        vectors = (array[entries] for array in (self.rates, self.decays, self.matrices))
        return Course([each.at(entries) for each in self.gradients], weights, *vectors)


class Past(NamedTuple):
    """Arrays of one step, by name."""

    gradients: Mapping[str, np.ndarray]
    parts: Sequence[Mapping[str, np.ndarray]]
    """Gradients of the batches that are accumulated; empty for one batch."""
    weights: Mapping[str, np.ndarray]
    """Weights before the step."""


def course_of(
    settings: Settings | None, past: Sequence[Past], rates: Mapping[str, float], kept: Mapping[str, np.ndarray]
) -> Course:
    """Collect the entries of each parameter that are True in `kept`, in the order of `kept`."""
    gradients = [given_of(each, kept) for each in past]
    weights = [flat(each.weights, kept) for each in past]
    decays = flat(settings.decays, kept) if settings else np.zeros_like(weights[-1])
    matrices = flat({name: float(own.ndim > 1) for name, own in kept.items()}, kept)
    return Course(gradients, weights, flat(rates, kept), decays, matrices)


def given_of(past: Past, kept: Mapping[str, np.ndarray]) -> Given:
    """Collect the entries of the gradients of one step."""
    norms = {name: float(np.linalg.norm(array)) for name, array in past.gradients.items()}
    parts = [(flat(part, kept), norm_of(part)) for part in past.parts]
    return Given(flat(past.gradients, kept), norm_of(past.gradients), flat(norms, kept), parts)


def norm_of(arrays: Mapping[str, np.ndarray]) -> float:
    """Compute the norm of all arrays together."""
    return float(np.sqrt(sum(np.square(array).sum() for array in arrays.values())))


def flat(arrays: Mapping[str, Any], kept: Mapping[str, np.ndarray]) -> np.ndarray:
    """Join the kept entries of all arrays into one vector; a number stands for each entry."""
    return np.concatenate([np.broadcast_to(arrays[name], own.shape)[own] for name, own in kept.items()])


def by_norm(added: float, given: Given, most: float) -> np.ndarray:
    """Clip a gradient by its global norm, to which a number is added."""
    return given.whole * min(1.0, most / max(given.norm + added, TINY))


def by_batches(given: Given, most: float) -> np.ndarray:
    """Clip the gradient of each batch by its own norm; return the mean."""
    return np.mean([part * min(1.0, most / max(norm, TINY)) for part, norm in given.parts], 0)


OF_BATCHES, TINY = "each batch's norm", 1e-300
CLIPS: dict[str, Callable[[Given, float], np.ndarray]] = {
    "norm + 1e-6": partial(by_norm, 1e-6),
    "norm": partial(by_norm, 0.0),
    "nothing": lambda given, most: given.whole,
    "each tensor's norm": lambda given, most: given.whole * np.minimum(1.0, most / np.maximum(given.norms, TINY)),
    "each tensor's norm + 1e-6": lambda given, most: given.whole * np.minimum(1.0, most / (given.norms + 1e-6)),
    "entry": lambda given, most: given.whole.clip(-most, most),
    OF_BATCHES: by_batches,
}
"""Ways to clip a gradient to a number, torch's first."""
