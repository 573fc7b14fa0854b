"""Pictures that a recipe leaves in its run's folder, if matplotlib is installed: of several processes, the first one draws."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxformer.errors import CheckpointError
from jaxformer.parallel.group import is_first
from jaxformer.plots.attention import draw_heads
from jaxformer.plots.losses import WORDS, Curves, draw_losses
from jaxformer.plots.style import can_plot, write
from jaxformer.runs.folder import CONFIG, RunFolder


def points_of(lines: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, dict[int, float]]:
    """Return the evaluations of a run by these measures: measure -> step -> value."""
    return {name: {int(line["step"]): line[name] for line in lines if name in line} for name in names}


def losses_of(run: RunFolder) -> Curves:
    """Return the losses that a run has evaluated."""
    return points_of(run.metrics, WORDS)


def read_losses(folder: Path) -> Curves:
    """Return the losses of a saved run; CheckpointError if it is damaged, or has evaluated none yet."""
    run = RunFolder.open(folder)
    run.check_trains()
    if "recipe" not in run.config:
        raise CheckpointError(f"{folder}/{CONFIG} does not describe a run; give the folder of a training")
    curves = losses_of(run)
    if not any(curves.values()):
        raise CheckpointError(f"{folder} has no losses yet; wait for its first evaluation, or go on with --resume")
    return curves


def plot_losses(run: RunFolder) -> None:
    """Write loss.png from the run's metrics."""
    if can_plot() and is_first():
        write(draw_losses({run.path.name: losses_of(run)}), run.path / "loss.png")


def plot_attention(run: RunFolder, weights: Float[np.ndarray, "L N T S"], source: Sequence[str], target: Sequence[str]) -> None:
    """Write attention.png: a map of cross-attention for each layer and head."""
    if can_plot() and is_first():
        write(draw_heads(weights, source, target, f"cross-attention of {run.path.name}"), run.path / "attention.png")
