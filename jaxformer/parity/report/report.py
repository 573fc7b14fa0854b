"""Report of a comparison: its data, its output formats, and a plot of training, which needs the `viz` extra."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.parity.numerics.metrics import LOSS, PARAMETER
from jaxformer.parity.report import strict_json
from jaxformer.parity.report.data import ReportData, Step
from jaxformer.parity.report.html import page
from jaxformer.parity.report.markdown import markdown
from jaxformer.parity.report.text import plain_text


@dataclass(frozen=True)
class Report(ReportData):
    """All findings of a comparison; `print(report)` shows it as plain text."""

    def to_json(self) -> str:
        """Serialise the report as strict JSON; `from_json` reads it back."""
        return strict_json.dump(self, verdict=self.verdict)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Parse what `to_json` wrote; InputError in one line for anything else."""
        return strict_json.load(cls, text, ignored="verdict")

    def to_markdown(self) -> str:
        """Render Markdown, for a pull request or an issue."""
        return markdown(self)

    def to_html(self) -> str:
        """Render a self-contained HTML page that needs no other file and no network."""
        return page(self)

    def __str__(self) -> str:
        return plain_text(self)


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
