"""Results of a measurement, and the JSON file that keeps them. Imports neither jax nor torch."""

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
    """Result of one side."""

    seconds: list[float]
    """Seconds per unit, for each round."""
    figures: dict[str, float]
    """Peak memory in bytes, threads, losses, as far as known."""

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
