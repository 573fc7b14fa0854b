"""What was measured, and the JSON file that keeps it. Imports neither jax nor torch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jaxformer.bench.items import COLD, JAXFORMER, key_of
from jaxformer.bench.limits import Peak
from jaxformer.errors import InputError

FORMAT = 1


@dataclass(frozen=True)
class SideResult:
    """One side."""

    seconds: list[float]
    """Of one unit, a number for each round."""
    figures: dict[str, float]
    """Peak memory in bytes, threads, losses; as far as they are known."""

    @property
    def median(self) -> float:
        """Seconds of one unit."""
        return median(self.seconds)


@dataclass(frozen=True)
class Result:
    """One item."""

    group: str
    name: str
    summary: str
    unit: str
    flops: float
    """Of one unit, the model's own."""
    bytes: float
    """That one unit moves at least."""
    peak: Peak
    machine: dict[str, Any]
    sides: dict[str, SideResult]
    """By peer, jaxformer first."""
    skipped: dict[str, str]
    """Peers that were not measured, and why."""

    @property
    def best_peer(self) -> str | None:
        """The one of the least median; None where no peer was measured."""
        others = [name for name in self.sides if name not in (JAXFORMER, COLD)]
        return min(others, key=lambda name: self.sides[name].median, default=None)

    def ratio(self, peer: str, own: str = JAXFORMER) -> float:
        """How many times as fast as a peer."""
        return self.sides[peer].median / self.sides[own].median

    def ratios(self, peer: str, own: str = JAXFORMER) -> tuple[float, float]:
        """The least and the greatest of all rounds."""
        found = [theirs / ours for theirs, ours in zip(self.sides[peer].seconds, self.sides[own].seconds, strict=True)]
        return min(found), max(found)

    def part(self, peer: str) -> float:
        """The part of what the machine could do at best."""
        return self.peak.part(self.flops, self.bytes, self.sides[peer].median)


def read_results(path: Path) -> list[Result]:
    """What a file holds, none where there is no file; InputError where it is not one of ours."""
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
    """A result of its JSON."""
    sides = {name: SideResult(**side) for name, side in values["sides"].items()}
    return Result(**values | {"peak": Peak(**values["peak"]), "sides": sides})


def add_results(path: Path, results: list[Result]) -> None:
    """Write them beside those that the file holds; an item that is there already is replaced."""
    kept = {key_of(result): result for result in [*read_results(path), *results]}
    text = json.dumps({"format": FORMAT, "results": [asdict(result) for result in kept.values()]}, indent=1)
    try:
        path.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; give another name") from None
