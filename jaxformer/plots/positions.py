"""Positions as a picture: what stands for each position, and how alike two positions are at each distance."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxformer.checkpoints.opened import open_folder
from jaxformer.errors import InputError
from jaxformer.nn.positions import TABLES, position_table
from jaxformer.nn.rotary import base_angles, make_rotary
from jaxformer.plots.reading import reader_of
from jaxformer.plots.style import SIGNED, plain_style
from jaxformer.validation.fields import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROTARY = "rotary"
KINDS = *TABLES, ROTARY


class Similarity(NamedTuple):
    """Cosine of the rows of two positions, over their distance 0, 1, ...: the mean of all pairs, and its range."""

    mean: Float[np.ndarray, " P"]
    lowest: Float[np.ndarray, " P"]
    highest: Float[np.ndarray, " P"]


def table_of(kind: str, n_positions: int, d_model: int, base: float = 10000.0) -> Float[np.ndarray, "P D"]:
    """Return the table of a kind of positions, one of KINDS.

    Rotary positions add nothing to the tokens. Their table has the cosines of every pair's angle, then the sines: the cosine
    of two such rows is the score of a query and a key whose pairs are all alike, a function of their distance alone.
    """
    check_choice("kind", kind, KINDS)
    if kind != ROTARY:
        return TABLES[kind](n_positions, d_model)
    return turned(base_angles(d_model, base), n_positions)


def turned(angles: Float[np.ndarray, " Q"], n_positions: int) -> Float[np.ndarray, "P D"]:
    """Return cosines and sines of every angle times every position."""
    every = np.arange(n_positions)[:, None] * angles
    return np.concatenate([np.cos(every), np.sin(every)], 1)


def read_table(folder: Path, most: int) -> tuple[str, Float[np.ndarray, "P D"]]:
    """Return the kind of positions of the model in a folder, and its first rows; InputError if it has none to draw."""
    model = reader_of(open_folder(folder))
    config, embed = model.config, model.embed
    rows = min(most, config.context)
    if embed.position is not None:
        return f"learned positions of {folder.name}", np.asarray(embed.position.table[...], np.float64)[:rows]
    if (rotary := make_rotary(config)) is not None:
        return f"rotary positions of {folder.name}", turned(np.asarray(rotary.angles[0]), rows)
    if config.positions == "none":
        raise InputError(f"{folder} holds a model without positions of its own (relative bias: {config.relative_bias})")
    return f"{config.positions} of {folder.name}", position_table(config.positions, rows, config.position_width)


def similarity(table: Float[np.ndarray, "P D"]) -> Similarity:
    """Return how alike two positions are at each distance; a row of zeros is like no other."""
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    rows = table / np.where(lengths == 0, 1, lengths)
    by_distance = [np.diagonal(rows @ rows.T, distance) for distance in range(len(rows))]
    return Similarity(*(np.array([f(each) for each in by_distance]) for f in (np.mean, np.min, np.max)))


@plain_style()
def draw_positions(table: Float[np.ndarray, "P D"], title: str) -> "Figure":
    """Draw the table as a heat map, and beside it the similarity over distance with its range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    most = float(np.abs(table).max()) or 1.0
    image = left.imshow(table, cmap=SIGNED, vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    left.set(xlabel="unit", ylabel="position")
    left.set_title(title, parse_math=False)
    figure.colorbar(image, ax=left)
    found = similarity(table)
    distance = np.arange(len(table))
    right.fill_between(distance, found.lowest, found.highest, alpha=0.25, linewidth=0, label="range over all pairs")
    right.plot(distance, found.mean, marker="", label="mean")
    right.set(xlabel="distance of two positions", ylabel="cosine of their rows", title="how alike two positions are")
    right.legend()
    right.grid(alpha=0.3)
    return figure
