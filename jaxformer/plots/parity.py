"""Error over depth of a comparison: each module's error in the normal run, and alone on torch's own values."""

import math
from typing import TYPE_CHECKING

from jaxformer.errors import InputError
from jaxformer.parity.report.data import ReportData
from jaxformer.plots.style import LINES, plain_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR, CEILING = 1e-17, 1e3
"""Heights at which an exact zero, and what is infinite or no number, are drawn."""
MOST_NAMES = 48


def height(error: float) -> float:
    """Return the height at which an error is drawn on a logarithmic axis."""
    return min(max(error, FLOOR), CEILING) if math.isfinite(error) else CEILING


@plain_style()
def draw_errors(report: ReportData) -> "Figure":
    """Draw both errors of every module call in torch's order; InputError if the report has no modules."""
    if not report.modules:
        raise InputError(f"the report has no modules to draw: {report.verdict}")
    from matplotlib.figure import Figure

    names = [module.name for module in report.modules]
    figure = Figure(figsize=(max(6.0, 2 + 0.2 * min(len(names), MOST_NAMES)), 5), layout="constrained")
    axes = figure.subplots()
    axes.plot([height(module.propagated.relative) for module in report.modules], label="in the normal run", markersize=3)
    own = [height(module.local.relative) for module in report.modules]
    axes.plot(own, linestyle="none", label="the module alone", markersize=4, color="#56B4E9")
    found = [place for place, module in enumerate(report.modules) if module.diverging]
    axes.plot(found, [own[place] for place in found], linestyle="none", marker="D", color=LINES[1], label="diverging")
    axes.axhline(height(report.tolerance), color="black", linestyle=":", linewidth=1, label="what counts as equal")
    axes.set(yscale="log", ylabel="relL2 between torch and jax", xlabel="" if len(names) <= MOST_NAMES else "call of a module")
    axes.set_title(report.verdict.partition(":")[0])
    if len(names) <= MOST_NAMES:
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6, parse_math=False)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure
