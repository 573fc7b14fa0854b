"""A picture of training on both sides, with the `viz` extra."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.parity.report import Step
from jaxformer.parity.training import LOSS, PARAMETER

FLOOR = 1e-17
"""Where no difference at all is drawn."""


def plot_course(steps: Sequence[Step], path: Path) -> None:
    """Write torch's loss, and below how far JAX's loss and its parameters are off, with their lines of tier A."""
    if find_spec("matplotlib") is None:
        raise InputError("plot_course needs matplotlib; pip install 'jaxformer[viz]'")
    from matplotlib.figure import Figure

    numbers = [step.number for step in steps]
    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot(numbers, [step.loss for step in steps], marker=".", color="C0", label="torch")
    jax_loss = "jax, within the line" if all(step.loss_error <= LOSS for step in steps) else "jax, at most"
    above.plot(numbers, [step.loss * (1 + step.loss_error) for step in steps], "--", color="C1", label=jax_loss)
    above.set(ylabel="loss", title="training on both sides")
    for name, line, color in (("loss_error", LOSS, "C1"), ("parameter_error", PARAMETER, "C2")):
        below.plot(numbers, [max(getattr(step, name), FLOOR) for step in steps], marker=".", color=color, label=LABELS[name])
        below.axhline(line, color=color, linestyle=":", linewidth=1)
    below.set(yscale="log", xlabel="optimizer step", ylabel="difference (dotted: tier A's lines)")
    for axes in (above, below):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


LABELS = {"loss_error": "loss, relative", "parameter_error": "parameters, max/rms"}
