"""`jaxformer bench`: training steps, writing, and whole processes beside PyTorch, transformers and Flax."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.bench.items import Group, chosen_items, chosen_peers
from jaxformer.cli.flags import parse
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """Selection of the measurements, and files for the results."""

    items: tuple[str, ...] = ()
    """Names of the work to measure. None: all."""
    peers: tuple[str, ...] = ()
    """Names of the sides to compare with. None: all that are installed."""
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
        items = chosen_items(group, self.items)
        if self.short:
            items, count = [item._replace(summary=f"short form of {item.summary}") for item in items], count or 2
        if count is not None:
            items = [item._replace(repeats=count if item.repeats > 1 else 1) for item in items]
        peers = chosen_peers(group, self.peers)
        from jaxformer.bench.measure import Plan
        from jaxformer.bench.run import Outputs, bench

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
