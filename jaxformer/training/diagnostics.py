"""Diagnostics of a run whose losses go wrong: skipped steps, spikes, divergence, and the reason why it stops.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.errors import NonFiniteError, quoted
from jaxformer.pytree import named_leaves
from jaxformer.runs.folder import RunFolder, kept_states
from jaxformer.runs.metrics import Line
from jaxformer.runtime.jit import jit
from jaxformer.training.health import MOST_IN_A_ROW, SPIKE, Health
from jaxformer.training.step import TrainState

Examine = Callable[[PyTree, int], tuple[Any, Mapping[str, float]]]
"""Function examine(model, step) -> the batch of that step, its loss, and the norm of each module's gradient."""
DIVERGED = 2.0, 1.0
"""Factor and margin of divergence: a mean loss above factor * the first step's loss + margin is reported."""
LOSSES = "loss", "val_loss"
"""Losses of a line: the mean since the line before, and the evaluation's."""
ANEW = "start anew with another --out and a lower --optimizer.learning-rate"
MOST_DECAY = 1.0
"""Largest sensible product of weight decay and learning rate, the part of each weight that a step takes away."""
MOST_SHOWN = 6
"""Number of modules whose gradient norm is reported."""


def marks(before: Health, now: Health) -> dict[str, int]:
    """Return what a line of metrics says of skipped steps and spikes since the last one: nothing if there were none."""
    found = {}
    if now.skipped > before.skipped:
        found |= {"skipped": int(now.skipped - before.skipped), "last_skipped": int(now.last_skipped) + 1}
    if now.spikes > before.spikes:
        found |= {"spikes": int(now.spikes - before.spikes), "last_spike": int(now.last_spike) + 1}
    return found


def said_of_skips(before: Health, now: Health) -> str:
    """Return a warning if steps were skipped, else ""."""
    if not now.skipped > before.skipped:
        return ""
    return (
        f"warning: the loss or the gradient of step {int(now.last_skipped) + 1} is not finite: skipped, "
        f"{int(now.skipped)} of {int(now.skipped + now.taken)} steps so far"
    )


def said_of_divergence(loss: float, first: float) -> str:
    """Return a warning if the loss is far above the first step's, else ""."""
    factor, margin = DIVERGED
    if not loss > factor * first + margin:
        return ""
    return f"warning: the run diverges: its loss is {loss:.4g}, and began with {first:.4g}; stop it, and {ANEW}"


def diagnosis(step: int, model: PyTree, examine: Examine | None) -> str:
    """Explain why a run stops after `step` steps, the last of which were skipped."""
    said = f"the loss or the gradient of steps {step - MOST_IN_A_ROW + 1} to {step} is not finite, and none of them was applied"
    if examine is not None:
        batch, numbers = examine(model, step - 1)
        loss, *norms = ((name, float(number)) for name, number in numbers.items())
        worst = sorted(norms, key=lambda norm: -np.nan_to_num(norm[1], nan=np.inf, posinf=np.inf))[:MOST_SHOWN]
        shown = ", ".join(f"{name} {norm:.3g}" for name, norm in worst)
        said += f"; step {step}: loss {loss[1]:.4g}, gradient norm {shown}; its batch: {', '.join(described(batch))}"
    return said


def remedy(run: RunFolder, first: float) -> str:
    """Say how a run with non-finite numbers can go on: from the newest checkpoint with sound losses, or from the start.

    `first` is the loss of its first step.
    """
    sound = sound_until(run.metrics, first)
    optimizer = run.config.get("recipe", {}).get("optimizer", {})
    decay = optimizer.get("learning_rate", 0) * optimizer.get("weight_decay", 0)
    if decay > MOST_DECAY:
        said = f"the weight decay times the learning rate is {decay:.3g}, and at most {MOST_DECAY:g} makes sense"
        return f"{said}; start anew with another --out, and a lower --optimizer.weight-decay or --optimizer.learning-rate"
    if good := [step for step in kept_states(run.checkpoints) if step <= sound]:
        return f"go on with --resume {good[-1]} --out {quoted(run.path)} and a lower --optimizer.learning-rate"
    return f"no checkpoint is kept from before the losses grew; {ANEW}"


def sound_until(lines: Sequence[Line], first: float) -> int:
    """Return the step of the last line whose losses are not far above the lowest until then; 0 without any."""
    factor, margin = SPIKE
    sound, lowest = 0, dict[str, float]()
    for line in lines:
        found = {name: line[name] for name in LOSSES if name in line}
        lowest |= {name: min(loss, lowest.get(name, first)) for name, loss in found.items()}
        if all(loss <= factor * lowest[name] + margin for name, loss in found.items()):
            sound = int(line["step"])
    return sound


def described(batch: Any) -> list[str]:
    """Describe every array of a batch: name, dtype, shape, and range of values."""
    arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(batch).items()}
    return [f"{name} {it.dtype}{list(it.shape)} from {it.min()} to {it.max()}" for name, it in arrays.items()]


@jit
def all_finite(state: TrainState) -> PyTree:
    """Return for each leaf 0 if all its values are finite, else NaN."""
    return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf).all(), 0.0, jnp.nan), state)


def check_finite(step: int, numbers: Mapping[str, Any]) -> None:
    """Raise NonFiniteError that names the first number that is NaN or infinite."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise NonFiniteError(f"{name} is {float(number)} at step {step}")
