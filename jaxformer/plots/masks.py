"""Masks as a picture: which key each query may read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from jaxformer.nn.masks import causal_mask, lengths_to_valid, padding_mask, window_mask
from jaxformer.plots.style import PAIR, plain_style
from jaxformer.validation.fields import check_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = Bool[np.ndarray, "T S"]
COLUMNS = 3


def usual_masks(tokens: int, window: int, prefix: int, padding: int) -> dict[str, Drawn]:
    """Return the usual masks of a sequence of so many tokens, by name; ConfigError for sizes that it does not have."""
    check_size("tokens", tokens, most=64)
    check_size("window", window, most=tokens)
    check_size("prefix", prefix, most=tokens)
    check_size("padding", padding, least=0, most=tokens - 1)
    causal, near = causal_mask(tokens), window_mask(tokens, tokens, window)
    real, begin = (padding_mask(lengths_to_valid(jnp.array([n]), tokens)) for n in (tokens - padding, prefix))
    masks = {
        "causal": causal,
        f"window of {window}": near,
        f"causal, window of {window}": causal & near,
        f"padding, {padding} at the end": real,
        "causal and padding": causal & real,
        f"prefix of {prefix}": causal | begin,
    }
    return {name: np.broadcast_to(np.asarray(mask)[0, 0], (tokens, tokens)) for name, mask in masks.items()}


@plain_style()
def draw_masks(masks: Mapping[str, Drawn]) -> "Figure":
    """Draw masks beside each other, each `T S`, True = may attend."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    rows = -(-len(masks) // COLUMNS)
    columns = min(len(masks), COLUMNS)
    figure = Figure(figsize=(2.6 * columns, 2.7 * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (name, mask) in zip(every, masks.items(), strict=False):
        axes.pcolormesh(mask, cmap=ListedColormap(list(PAIR)), vmin=0, vmax=1, edgecolors="white", linewidth=1)
        axes.set(aspect="equal", xticks=[], yticks=[])
        axes.invert_yaxis()
        axes.set_title(name, fontsize=10, parse_math=False)
    for axes in list(every):
        axes.set_axis_off()
    figure.supxlabel("key (blue: may be read)")
    figure.supylabel("query")
    return figure
