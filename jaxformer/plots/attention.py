"""Attention weights as pictures: a map for each head, or one map with its tokens at both edges."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from jaxformer.plots.style import HEAT, MOST_LABELS, plain_style

NARROWEST, WIDEST, ROW = 2.4, 36.0, 0.12
"""Side of a map of few tokens, and of all maps beside each other at most, and height of a token's row, in inches."""
ROOM = 50.0
"""Points of a letter in an inch of rows: seven tenths of their height."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@plain_style()
def draw_heads(weights: Float[np.ndarray, "L N T S"], keys: Sequence[str], queries: Sequence[str], title: str) -> "Figure":
    """Draw a map for each layer and head: rows are the queries' tokens, columns the keys'."""
    from matplotlib.figure import Figure

    layers, heads = weights.shape[:2]
    wide, high = side(len(keys), heads), side(len(queries), layers)
    figure = Figure(figsize=(max(5.0, wide * heads), high * layers + 0.6), layout="constrained")
    size = min(6.0, ROOM * min(wide / len(keys), high / len(queries)))
    for (layer, head), axes in np.ndenumerate(figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)):
        axes.imshow(weights[layer, head], vmin=0, vmax=1, cmap=HEAT, aspect="auto", interpolation="nearest")
        axes.set_title(f"layer {layer}, head {head}", fontsize=9)
        label(axes, keys, queries, size=size)
    figure.supxlabel("token read")
    figure.supylabel("token that reads")
    figure.suptitle(title, parse_math=False)
    return figure


def side(tokens: int, maps: int) -> float:
    """Return the side of a map in inches: a row for each token that is labelled, as far as all maps together stay drawable."""
    return max(NARROWEST, min(ROW * tokens, WIDEST / maps)) if tokens <= MOST_LABELS else NARROWEST


@plain_style()
def draw_alignment(weights: Float[np.ndarray, "T S"], source: Sequence[str], target: Sequence[str]) -> "Figure":
    """Draw one map: which source token was read when each target token was written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 0.33 * len(source), 1.8 + 0.28 * len(target)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights, vmin=0, vmax=1, cmap=HEAT, aspect="auto", interpolation="nearest")
    label(axes, source, target, size=9)
    axes.set(xlabel="source token read", ylabel="target token written")
    figure.colorbar(image, label="attention")
    return figure


VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "→"})


def label(axes: "Axes", keys: Sequence[str], queries: Sequence[str], *, size: float) -> None:
    """Write the tokens at the edges, if they are not too many; spaces are made visible."""
    keys, queries = ([token.translate(VISIBLE) for token in tokens] for tokens in (keys, queries))
    if len(keys) <= MOST_LABELS:
        turned = 90 if any(token[1:] for token in keys) else 0
        axes.set_xticks(range(len(keys)), keys, rotation=turned, fontsize=size, parse_math=False)
    if len(queries) <= MOST_LABELS:
        axes.set_yticks(range(len(queries)), queries, fontsize=size, parse_math=False)
