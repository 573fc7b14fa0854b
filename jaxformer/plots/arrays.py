"""Any arrays as pictures: maps beside each other, and lines in one plot."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from jaxformer.plots.style import SIGNED, plain_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@plain_style()
def draw_maps(maps: Mapping[str, Float[np.ndarray, "Y X"]], xlabel: str, ylabel: str, *, rows: Sequence[str] = ()) -> "Figure":
    """Draw matrices beside each other in the same colours; `rows` names their rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(maps) + 0.8, 3), layout="constrained")
    every = figure.subplots(1, len(maps), sharey=True, squeeze=False)[0]
    most = max(float(np.abs(each).max()) for each in maps.values()) or 1.0
    for axes, (title, each) in zip(every, maps.items(), strict=True):
        axes.imshow(each, cmap=SIGNED, vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.set_xlabel(xlabel)
    every[0].set_ylabel(ylabel)
    if rows:
        every[0].set_yticks(range(len(rows)), rows, parse_math=False)
    figure.colorbar(every[-1].images[0], ax=list(every))
    return figure


@plain_style()
def draw_lines(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], xlabel: str, ylabel: str, *, log: bool = False
) -> "Figure":
    """Draw lines by name, each of its places and values; `log`: on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for (name, (places, values)), dash in zip(lines.items(), ("-", "--", ":", "-.") * len(lines), strict=False):
        drawn = axes.plot(places, values, linestyle=dash, marker="o" if len(places) <= 24 else "", markersize=3)
        drawn[0].set_label(name.replace("$", r"\$"))
    axes.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure
