"""Plots of a run as PNG, with the `viz` extra.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from jaxformer.errors import InputError
from jaxformer.parallel.group import is_first
from jaxformer.runs.folder import RunFolder


def can_plot() -> bool:
    """True if matplotlib is installed; without it the functions here do nothing."""
    return find_spec("matplotlib") is not None


@contextmanager
def plain_style() -> Iterator[None]:
    """Context manager: pictures have matplotlib's default style, since the user's settings may require a missing LaTeX."""
    if not can_plot():
        yield
        return
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


@plain_style()
def plot_losses(run: RunFolder) -> None:
    """Write loss.png from the run's metrics."""
    if not can_plot() or not is_first():
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in ("loss", "train_loss", "val_loss"):
        points = [(line["step"], line[name]) for line in run.metrics if name in line]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", label={"loss": "batch loss"}.get(name, name.replace("_", " ")))
    axes.set(xlabel="optimizer step", ylabel="cross-entropy (nats a token)")
    axes.set_title(run.path.name, parse_math=False)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(run.path / "loss.png", dpi=120)


@plain_style()
def plot_attention(run: RunFolder, weights: np.ndarray, source: Sequence[str], target: Sequence[str]) -> None:
    """Write attention.png: a map for each layer and head of `M N T S` weights."""
    if not can_plot() or not is_first():
        return
    from matplotlib.figure import Figure

    layers, heads = weights.shape[:2]
    figure = Figure(figsize=(3 * heads, 3 * layers), layout="constrained")
    for (layer, head), axes in np.ndenumerate(figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)):
        axes.imshow(weights[layer, head], vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_title(f"layer {layer}, head {head}", fontsize=9)
        axes.set_xticks(range(len(source)), source, fontsize=4, parse_math=False)
        axes.set_yticks(range(len(target)), target, fontsize=4, parse_math=False)
    figure.supxlabel("source token read")
    figure.supylabel("target token written")
    figure.suptitle(f"cross-attention of {run.path.name}", parse_math=False)
    figure.savefig(run.path / "attention.png", dpi=120)


@plain_style()
def plot_alignment(path: Path, weights: np.ndarray, source: Sequence[str], target: Sequence[str]) -> None:
    """Write one map of `T S` weights as a picture, with tokens at both edges."""
    if not can_plot():
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 0.35 * len(source), 1.5 + 0.3 * len(target)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=90, parse_math=False)
    axes.set_yticks(range(len(target)), target, parse_math=False)
    axes.set(xlabel="source token read", ylabel="target token written")
    figure.colorbar(image, label="attention")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}; name a .png file") from None
