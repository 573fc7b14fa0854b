"""Average a run's newest weights (checkpoint averaging: Vaswani et al. 2017, section 6.1).

Only jaxformer has runs: the PyTorch twin has no such module.
"""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.safetensors import load_weights, save_weights
from jaxformer.errors import CheckpointError
from jaxformer.parallel.group import is_first
from jaxformer.parallel.placement import on_host
from jaxformer.runs.folder import EVALUATED, RunFolder, steps_named

SUFFIX = ".safetensors"


def write_weights(run: RunFolder, path: Path, model: PyTree) -> None:
    """Write a file of the run with the weights of all devices; all processes gather them, and the first writes."""
    whole = jax.tree.map(on_host, model)
    if is_first():
        save_weights(path, whole, run.manifest.renewed)


def weights_of(run: RunFolder, step: int) -> Path:
    """Path of a step's evaluated weights."""
    return run.evaluated / f"{step}{SUFFIX}"


def keep_weights(run: RunFolder, step: int, model: PyTree, newest: int, *new: Mapping[str, float | int]) -> None:
    """Write the weights of a step; of the others, keep only the newest and the best, and none of a later step.

    `new` lines of metrics are not logged yet.
    """
    run.evaluated.mkdir(exist_ok=True)
    write_weights(run, weights_of(run, step), model)
    if is_first():
        forget_weights_after(run, step)
        for stale in {*kept_steps(run)} - {*kept_steps(run)[-newest:], best_step(run, *new)[0]}:
            run.manifest.remove(weights_of(run, stale))


def forget_weights_after(run: RunFolder, step: int) -> None:
    """Remove the weights of later steps, which a resumed run will take again."""
    for later in [kept for kept in kept_steps(run) if kept > step]:
        run.manifest.remove(weights_of(run, later))


def forget_lost_weights(run: RunFolder) -> None:
    """Forget weights whose files were removed, so that the run goes on without them; a warning names them."""
    for name, versions in run.manifest.entries.items():
        if name.startswith(f"{EVALUATED}/") and None not in versions and not (run.path / name).exists():
            run.manifest.remove(run.path / name)
            said = "is missing: the mean and the best are taken without it, unless the run comes to its step again"
            warnings.warn(f"{run.path / name} {said}", stacklevel=3)


def kept_steps(run: RunFolder) -> list[int]:
    """Return the steps whose weights are there, in order; files that the run did not write do not count."""
    entries = run.manifest.entries
    found = run.evaluated.glob(f"*{SUFFIX}")
    return steps_named(path.stem for path in found if not entries or path.relative_to(run.path).as_posix() in entries)


def best_step(run: RunFolder, *new: Mapping[str, float | int]) -> tuple[int, float]:
    """Return the step with the lowest validation loss among those with weights, and the loss; (-1, infinity) if there
    are none.
    """
    kept = {*kept_steps(run)}
    losses = [(line["val_loss"], -line["step"]) for line in (*run.metrics, *new) if line["step"] in kept and "val_loss" in line]
    loss, step = min(losses, default=(math.inf, 1))
    return -int(step), loss


def average_weights(run: RunFolder, like: PyTree, newest: int) -> PyTree:
    """Average the newest weights on the host, where nothing is compiled; CheckpointError if there are none."""
    steps = kept_steps(run)[-newest:]
    if not steps:
        raise CheckpointError(f"{run.evaluated} holds no weights to average; go on with a larger --steps")
    total = jax.tree.map(np.asarray, load_weights(weights_of(run, steps[0]), like))
    for step in steps[1:]:
        total = jax.tree.map(np.add, total, load_weights(weights_of(run, step), like))
    return jax.tree.map(lambda leaf: jax.device_put(leaf / len(steps)), total)
