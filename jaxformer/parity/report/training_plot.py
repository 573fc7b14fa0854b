"""Plot of training on both sides; needs the `viz` extra."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.parity.numerics.metrics import LOSS, PARAMETER
from jaxformer.parity.report.data import Step

FLOOR = 1e-17
"""Height at which an exact zero is drawn."""


def plot_training(steps: Sequence[Step], path: Path) -> None:
    """Plot both losses, and below them the errors of jax's loss and parameters with the tolerances of tier A, to `path`.

    A step stores how far its losses are apart, not which one is larger: JAX's is drawn above torch's.
    """
    if find_spec("matplotlib") is None:
        raise InputError("plot_training needs matplotlib; pip install 'jaxformer[viz]'")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    numbers = [step.number for step in steps]
    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot(numbers, [step.loss for step in steps], marker=".", color="C0", label="torch")
    above.plot(numbers, [step.loss * (1 + step.loss_error) for step in steps], "--", color="C1", label="jax")
    above.set(ylabel="loss", title="training on both sides")
    for error, tolerance, color, label in (
        ([step.loss_error for step in steps], LOSS, "C1", "loss, relative"),
        ([step.parameter_error for step in steps], PARAMETER, "C2", "parameters, max/rms"),
    ):
        below.plot(numbers, [max(value, FLOOR) for value in error], marker=".", color=color, label=label)
        below.axhline(tolerance, color=color, linestyle=":", linewidth=1)
    below.set(yscale="log", xlabel="optimizer step", ylabel="difference (dotted: tolerance of tier A)")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
