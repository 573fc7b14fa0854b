"""The mean of a run's newest weights (checkpoint averaging: Vaswani et al. 2017, section 6.1).

Only the JAX side has runs: the twin has none.
"""

from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.safetensors_io import load_weights, save_weights
from jaxformer.errors import CheckpointError
from jaxformer.processes.group import is_first
from jaxformer.sharding.placement import on_host
from jaxformer.training.checkpoint import steps_named
from jaxformer.training.runs import RunFolder

SUFFIX = ".safetensors"


def write_weights(run: RunFolder, path: Path, model: PyTree) -> None:
    """Write a file of the run with the weights of all devices; of several processes all gather them, and the first writes."""
    whole = jax.tree.map(on_host, model)
    if is_first():
        save_weights(path, whole, run.manifest.renewed)


def keep_weights(run: RunFolder, step: int, model: PyTree, newest: int) -> None:
    """Write the weights of a step; of the others only the newest stay, and none of a later step."""
    folder = run.evaluated
    folder.mkdir(exist_ok=True)
    write_weights(run, folder / f"{step}{SUFFIX}", model)
    if not is_first():
        return
    before = [kept for kept in kept_steps(folder) if kept <= step]
    for stale in set(kept_steps(folder)) - set(before[-newest:]):
        run.manifest.remove(folder / f"{stale}{SUFFIX}")


def kept_steps(folder: Path) -> list[int]:
    """The steps whose weights are there, in order."""
    return steps_named(path.stem for path in folder.glob(f"*{SUFFIX}"))


def average_weights(folder: Path, like: PyTree) -> PyTree:
    """The mean of all kept weights, taken on the host, where nothing is compiled; CheckpointError where there are none."""
    steps = kept_steps(folder)
    if not steps:
        raise CheckpointError(f"{folder} holds no weights to average")
    total = jax.tree.map(np.asarray, load_weights(folder / f"{steps[0]}{SUFFIX}", like))
    for step in steps[1:]:
        total = jax.tree.map(np.add, total, load_weights(folder / f"{step}{SUFFIX}", like))
    return jax.tree.map(lambda leaf: jax.device_put(leaf / len(steps)), total)
