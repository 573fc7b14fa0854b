"""Losses of runs over their steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxformer.plots.style import LINES, MARKERS, plain_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"loss": "batch loss", "train_loss": "train loss", "val_loss": "validation loss"}
"""Measures of a line of metrics that are losses -> their names."""
STYLES = dict(zip(WORDS, ("-", ":", "--"), strict=True))
Curves = Mapping[str, Mapping[int, float]]
"""Measure -> step -> value."""


@plain_style()
def draw_losses(runs: Mapping[str, Curves]) -> "Figure":
    """Draw the losses of runs by name: a colour and a marker for each run, a dash for each measure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, curves) in enumerate(runs.items()):
        for measure in (each for each in WORDS if curves.get(each)):
            points, word = curves[measure], WORDS[measure]
            style = {"linestyle": STYLES[measure], "color": LINES[number % len(LINES)], "markersize": 3}
            drawn = axes.plot([*points], [*points.values()], marker=MARKERS[number % len(MARKERS)], **style)
            drawn[0].set_label(word if len(runs) == 1 else f"{name}: {word}".replace("$", r"\$"))
    axes.set(xlabel="optimizer step", ylabel="cross-entropy (nats a token)")
    if len(runs) == 1:
        axes.set_title(next(iter(runs)), parse_math=False)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure
