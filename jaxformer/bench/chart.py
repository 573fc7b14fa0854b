"""Results as a picture: how fast every side is beside the best peer."""

from collections.abc import Sequence
from pathlib import Path

from jaxformer.bench.items import key_of
from jaxformer.bench.peers import PEERS
from jaxformer.bench.results import Result
from jaxformer.bench.tables import ordered


def draw(path: Path, results: Sequence[Result]) -> None:
    """A PNG of bars: for each item, each side's speed as a multiple of the best peer's."""
    from matplotlib.figure import Figure

    shown = [result for result in ordered(results) if result.best_peer is not None]
    rows = [(result, peer) for result in reversed(shown) for peer in reversed(result.sides)]
    colors = {peer: f"C{number}" for number, peer in enumerate(PEERS)}
    figure = Figure(figsize=(8, 1 + 0.22 * len(rows) + 0.2 * len(shown)), layout="constrained")
    axes, place, marks = figure.subplots(), 0.0, {}
    for number, (result, peer) in enumerate(rows):
        if number and rows[number - 1][0] is not result:
            place += 1
        speed = result.ratio(str(result.best_peer), peer)
        axes.barh(place, speed, color=colors[peer], label=peer)
        axes.annotate(f" {speed:.2f}", (speed, place), va="center", fontsize=7)
        marks[key_of(result)] = place
        place += 1
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(list(marks.values()), list(marks), fontsize=8)
    axes.set(xlabel="speed, the best peer = 1")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles, fontsize=7, loc="lower right")
    figure.savefig(path, dpi=120)
