"""`jaxformer bench`: training steps, writing, and whole processes beside PyTorch, transformers and Flax.

Item after item is measured, printed and saved at once, so that finished work is kept whatever ends the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxformer.bench import limits
from jaxformer.bench.items import Device, Group, Item, chosen_items, chosen_peers, key_of
from jaxformer.bench.limits import Peak
from jaxformer.bench.measure import Plan, measure_item
from jaxformer.bench.results import Result, add_results, draw, named, peaks, read_results, show, summary
from jaxformer.bench.runners import ask_once
from jaxformer.cli.flags import parse
from jaxformer.errors import InputError
from jaxformer.validation.fields import check_size

WIDTH = 112
"""Minimum width of the tables, in columns."""
IDLE = 0.25
"""Load per core up to which a machine counts as idle."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Files for the results."""

    json: Path | None
    chart: Path | None

    def check(self) -> None:
        """Raise InputError, before anything is measured, if a file cannot be written."""
        for path in (self.json, self.chart):
            if path is not None and not path.resolve().parent.is_dir():
                raise InputError(f"{path} cannot be written: its folder does not exist; name one that does")
        if self.chart is not None and self.chart.suffix != ".png":
            raise InputError(f"chart = {self.chart} is not a .png file; give it that ending")
        if self.chart is not None and not find_spec("matplotlib"):
            raise InputError("--chart needs matplotlib; pip install 'jaxformer[viz]'")
        if self.json is not None:
            read_results(self.json)

    def keep(self, results: list[Result]) -> None:
        """Write the results; the chart shows everything in the JSON file."""
        if self.json is not None:
            add_results(self.json, results)
        if self.chart is not None:
            draw(self.chart, results if self.json is None else read_results(self.json))


def bench(items: Sequence[Item], plan: Plan, outputs: Outputs) -> None:
    """Measure the items, and print and save each result at once; KeyboardInterrupt if Ctrl-C ended the run."""
    outputs.check()
    console, results, stopped = Console(highlight=False, soft_wrap=True), [], False
    console.width = max(console.width, WIDTH)
    tell_load(console, "before the start", IDLE)
    try:
        device = items[0].device
        peak = Peak(**ask_once("peak", on=device, device=device))
        console.print(f"{named(limits.described(), peak)}: {peaks(peak)}")
        for item in items:
            result, stopped = measure_item(item, plan, peak)
            if result is not None:
                results.append(result)
                show(console, result)
                outputs.keep(results)
            if stopped:
                raise KeyboardInterrupt
    finally:
        tell_load(console, "at the end", 1 + IDLE)
        if results:
            console.print(summary(results), markup=False)
        if len(results) < len(items) or stopped:
            missing = [key_of(item) for item in items if key_of(item) not in {key_of(result) for result in results}]
            console.print(f"not measured: {', '.join(missing) or 'the last rounds'}", markup=False)


def tell_load(console: Console, when: str, idle: float) -> None:
    """Warn if other work runs beside the measurement; at the end, its own load is included."""
    load, cores = limits.load(), limits.cores()
    if load is not None and load > idle * cores:
        console.print(f"the machine is loaded: {load:.1f} processes on {cores} cores {when}; times are longer, and ratios vary")


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """Selection of the measurements, and files for the results."""

    items: tuple[str, ...] = ()
    """Names of the work to measure. None: all."""
    peers: tuple[str, ...] = ()
    """Names of the sides to compare with. None: all that are installed."""
    device: Device = "cpu"
    """Device that every side works on. gpu: in bfloat16 for training, with torch on the same card."""
    rounds: int = 3
    """Number of times that every side is timed, in turn."""
    short: bool = False
    """Use tiny models and few steps, to check that everything runs; times mean nothing."""
    json: Path | None = None
    """Add the results to this JSON file; an item that it holds is replaced."""
    chart: Path | None = None
    """Draw the results as bars, in this PNG file."""

    def __post_init__(self) -> None:
        check_size("rounds", self.rounds)

    def bench(self, group: Group, options: dict[str, Any], *, count: int | None = None, validate: bool = False) -> None:
        """Measure. `options` are those of the items; `count` is how often each is done in a round (None: its own number)."""
        items = chosen_items(group, self.device, self.items)
        if not items:
            raise InputError(f"device = {self.device}: bench {group} has no work for it; leave --device out")
        peers = chosen_peers(items, self.peers)
        if self.short:
            items, count = [item._replace(summary=f"short form of {item.summary}") for item in items], count or 2
        if count is not None:
            items = [item._replace(repeats=count if item.repeats > 1 else 1) for item in items]
        from jaxformer.bench.measure import Plan

        plan = Plan(peers=peers, rounds=self.rounds, options={"short": self.short, **options}, validate=validate)
        bench(items, plan, Outputs(json=self.json, chart=self.chart))


@dataclass(frozen=True, kw_only=True)
class Train(BenchFlags):
    """Time training steps of jaxformer and its peers: the same weights, each side in a process of its own, in turn."""

    steps: int | None = None
    """Steps per round. None: as many as the item says."""
    dropout: bool | None = None
    """Train with the presets' dropout, or without. None: as the item says."""
    data: Path | None = None
    """A text file, or sentence pairs with a tab in each line, in place of the corpus."""
    validate: bool = False
    """Measure the loss on held-out data at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            check_size("steps", self.steps, least=2)


def train(arguments: list[str]) -> None:
    """Measure training steps, and print the results."""
    flags = parse(Train, arguments, prog="jaxformer bench train")
    options = {"dropout": flags.dropout, "data": None if flags.data is None else str(flags.data)}
    flags.bench("train", options, count=flags.steps, validate=flags.validate)


@dataclass(frozen=True, kw_only=True)
class Generate(BenchFlags):
    """Time the text generation of jaxformer and its peers: the same weights and text, each side in a process of its own."""

    sentences: int = 32
    """Number of sentences for the beam search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("sentences", self.sentences, least=2)


def generate(arguments: list[str]) -> None:
    """Measure text generation, and print the results."""
    flags = parse(Generate, arguments, prog="jaxformer bench generate")
    sentences = 2 if flags.short else flags.sentences
    flags.bench("generate", {"sentences": sentences}, count=sentences)


@dataclass(frozen=True, kw_only=True)
class Start(BenchFlags):
    """Time whole processes of jaxformer and its peers, from their start to their end, with a compilation cache and without."""

    data: Path | None = None
    """Sentence pairs with a tab in each line, in place of the corpus."""


def start(arguments: list[str]) -> None:
    """Measure whole processes, and print the results."""
    flags = parse(Start, arguments, prog="jaxformer bench start")
    flags.bench("start", {"data": None if flags.data is None else str(flags.data.resolve())})
