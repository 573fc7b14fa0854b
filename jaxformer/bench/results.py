"""Results of a measurement: the JSON file that keeps them, tables for the terminal and Markdown, and a chart. Imports neither
jax nor torch."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from jaxformer.bench.items import COLD, ITEMS, JAXFORMER, PEERS, key_of
from jaxformer.bench.limits import SIZES, Peak
from jaxformer.errors import InputError

FORMAT = 1
NOISE = 0.1
"""Difference of the machine's own speed, between two rounds, up to which they are compared."""


@dataclass(frozen=True)
class SideResult:
    """Result of one side."""

    seconds: list[float]
    """Seconds per unit, for each round."""
    figures: dict[str, float]
    """Peak memory in bytes, threads, losses, and how far the work is `apart` from jaxformer's, as far as known."""

    @property
    def median(self) -> float:
        """Median seconds per unit."""
        return median(self.seconds)


@dataclass(frozen=True)
class Result:
    """Result of one item."""

    group: str
    name: str
    summary: str
    unit: str
    flops: float
    """Floating-point operations of one unit, by the model's shape."""
    bytes: float
    """Least bytes that one unit moves."""
    peak: Peak
    machine: dict[str, Any]
    sides: dict[str, SideResult]
    """Results of the sides by name, jaxformer first."""
    skipped: dict[str, str]
    """Peers that were not measured -> reason."""
    paces: list[float] = field(default_factory=list)
    """Seconds that a fixed piece of work took around each round."""
    device: str = "cpu"
    tokens: float = 0.0
    """Tokens that are trained on or written in one unit; 0 if unknown."""

    @property
    def noise(self) -> float:
        """Ratio of the machine's speeds in its fastest and slowest round, less 1."""
        return max(self.paces) / min(self.paces) - 1 if self.paces else 0.0

    @property
    def best_peer(self) -> str | None:
        """Name of the peer with the least median; None if no peer was measured."""
        others = [name for name in self.sides if name not in (JAXFORMER, COLD)]
        return min(others, key=lambda name: self.sides[name].median, default=None)

    def ratio(self, peer: str, own: str = JAXFORMER) -> float:
        """Speed of a side relative to a peer: above 1, the side is faster."""
        return self.sides[peer].median / self.sides[own].median

    def ratios(self, peer: str, own: str = JAXFORMER) -> tuple[float, float]:
        """Return the least and the greatest speed ratio of all rounds."""
        found = [theirs / ours for theirs, ours in zip(self.sides[peer].seconds, self.sides[own].seconds, strict=True)]
        return min(found), max(found)

    def part(self, peer: str) -> float:
        """Fraction of the machine's peak that a side reached."""
        return self.peak.part(self.flops, self.bytes, self.sides[peer].median)


def read_results(path: Path) -> list[Result]:
    """Read the results in a file, [] if there is no file; InputError if it is not a file of results."""
    if not path.exists():
        return []
    try:
        held = json.loads(path.read_text("utf-8"))
        if held["format"] != FORMAT:
            raise ValueError(f"format {held['format']}")
        return [from_json(result) for result in held["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold results of jaxformer bench ({error}); give another name") from None


def from_json(values: dict[str, Any]) -> Result:
    """Build a result from its JSON."""
    sides = {name: SideResult(**side) for name, side in values["sides"].items()}
    return Result(**values | {"peak": Peak(**values["peak"]), "sides": sides})


def add_results(path: Path, results: list[Result]) -> None:
    """Add results to a file; a result of an item that is there already is replaced."""
    kept = {key_of(result): result for result in [*read_results(path), *results]}
    text = json.dumps({"format": FORMAT, "results": [asdict(result) for result in kept.values()]}, indent=1)
    try:
        path.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; give another name") from None


GROUPS = {"train": "a training step", "generate": "writing", "start": "from the start of the process"}
HEADS = ("side", "median", "least to most", "tokens/s", "jaxformer is", "apart", "of the peak", "memory")


def show(console: Console, result: Result) -> None:
    """Print an item's table, with a row for each side."""
    table = Table(box=box.SIMPLE_HEAD)
    heads, *rows = filled([HEADS, *(row(result, peer, side) for peer, side in result.sides.items())])
    for head in heads:
        table.add_column(head, justify="left" if head == HEADS[0] else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    console.print(f"\n{key_of(result)}: {result.summary}", markup=False)
    if result.group != "start":
        work = f"{result.flops / 1e9:,.3g} GFLOP, at least {result.bytes / 1e6:,.3g} MB"
        console.print(f"one {result.unit}: {work}", markup=False)
    console.print(table)
    for peer, reason in result.skipped.items():
        console.print(f"{peer} skipped: {reason}", markup=False)
    if result.noise > NOISE:
        console.print(f"the machine's own speed varied by {100 * result.noise:.0f} % in these rounds; ratios vary with it")


def row(result: Result, peer: str, side: SideResult) -> list[str]:
    """Format the cells of one side, as in HEADS."""
    spread = f"{duration(min(side.seconds))} to {duration(max(side.seconds))}"
    ratio = "" if peer == JAXFORMER else f"{result.ratio(peer):.2f} x"
    part = "" if result.group == "start" else f"{100 * result.part(peer):.0f} %"
    threads = int(side.figures.get("threads", 0))
    named = f"{peer}, {threads} thread{'s' * (threads > 1)}" if threads else peer
    pace = f"{float(f'{result.tokens / side.median:.3g}'):,.0f}" if result.tokens else ""
    return [named, duration(side.median), spread, pace, ratio, "" if peer == JAXFORMER else apart(side), part, memory(side)]


def summary(results: Sequence[Result]) -> str:
    """Format one line for each item."""
    return "\n".join(f"{key_of(result):22} {against_best(result)}" for result in results)


def against_best(result: Result) -> str:
    """Format the comparison of an item with its best peer."""
    peer = result.best_peer
    if peer is None:
        return f"{duration(result.sides[JAXFORMER].median)}; no peer was measured"
    low, high = result.ratios(peer)
    times = f"{duration(result.sides[JAXFORMER].median)} for {duration(result.sides[peer].median)} of {peer}"
    return f"{result.ratio(peer):.2f} x ({low:.2f} to {high:.2f}): {times}"


def duration(seconds: float) -> str:
    """Format seconds with three digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def apart(side: SideResult) -> str:
    """Format how far a side's loss or tokens are from jaxformer's, relative; '' if unknown."""
    return f"{side.figures['apart']:.0e}".replace("0e+00", "0") if "apart" in side.figures else ""


def memory(side: SideResult) -> str:
    """Format the peak resident memory; '' if unknown."""
    return f"{side.figures['memory'] / 1e9:.2f} GB" if "memory" in side.figures else ""


def ordered(results: Iterable[Result]) -> list[Result]:
    """Sort results in the order of ITEMS."""
    places = {key_of(item): place for place, item in enumerate(ITEMS)}
    return sorted((result for result in results if key_of(result) in places), key=lambda result: places[key_of(result)])


def markdown(results: Sequence[Result]) -> str:
    """Format all results for docs/performance.md: for each device the machine, and a table for each group."""
    parts = []
    for device in dict.fromkeys(result.device for result in ordered(results)):
        here = [result for result in ordered(results) if result.device == device]
        parts.append(machine_line(here))
        for group, head in GROUPS.items():
            if found := [result for result in here if result.group == group]:
                parts.append(grid([[head, *HEADS], *(cells for result in found for cells in long_rows(result))]))
    return "\n\n".join(parts)


def long_rows(result: Result) -> list[list[str]]:
    """Format a row for each side, with the work named in the first."""
    rows = [row(result, peer, side) for peer, side in result.sides.items()]
    return [[result.summary if cells is rows[0] else "", *cells] for cells in rows]


def short_markdown(results: Sequence[Result]) -> str:
    """Format the speed of each item relative to the best peer, for the README: a row for each group, and each accelerator."""
    rows: dict[str, list[str]] = {}
    for result in ordered(results):
        if result.best_peer:
            head, start = (
                (result.peak.accelerator, f"{GROUPS[result.group]}: ") if result.device != "cpu" else (GROUPS[result.group], "")
            )
            rows.setdefault(head, []).append(start + in_short(result))
    return grid([["work", "times as fast"], *([head, ", ".join(cells)] for head, cells in rows.items())])


def in_short(result: Result) -> str:
    """Format an item's name without sizes and its speed ratio; for a start, also that with an empty compilation cache."""
    peer = str(result.best_peer)
    first = f" (first start {result.ratio(peer, COLD):.1f})" if COLD in result.sides else ""
    return f"{result.summary.partition(':')[0]} **{result.ratio(peer):.1f}**{first}"


def machine_line(results: Sequence[Result]) -> str:
    """Describe the machine: a line for each machine, and for each run whose peaks differ."""
    lines = []
    for result in ordered(results):
        machine, peak = result.machine, result.peak
        releases = ", ".join(f"{name} {machine[name]}" for name in ("jax", "flax", "torch", "transformers") if name in machine)
        lines.append(f"{named(machine, peak)}; {releases}; {peaks(peak)}.")
    return "\n".join(dict.fromkeys(lines))


def named(machine: dict[str, Any], peak: Peak) -> str:
    """Name what the work was done on."""
    return peak.accelerator or f"{machine['cores']} cores of {machine['processor']}"


def peaks(peak: Peak) -> str:
    """Format the measured peaks of the machine."""
    side, dtype, _ = SIZES["gpu" if peak.accelerator else "cpu"]
    products = f"{dtype} products of {side} x {side} at {peak.flops / 1e9:,.0f} GFLOP/s"
    return f"{products}, memory read at {peak.bandwidth / 1e9:,.0f} GB/s"


def filled(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leave out the columns that are empty below their head."""
    kept = [any(cells) for cells in zip(*rows[1:], strict=True)]
    return [[cell for cell, keep in zip(row, kept, strict=True) if keep] for row in rows]


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; the first row is the header."""
    rows = filled(rows)
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def draw(path: Path, results: Sequence[Result]) -> None:
    """Draw a PNG of bars: for each item, each side's speed relative to the best peer."""
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
