"""Flags that the commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.bench.items import Group, chosen_items, chosen_peers
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """What is measured, and where the results are kept."""

    items: tuple[str, ...] = ()
    """Work by name. None: all."""
    peers: tuple[str, ...] = ()
    """Whom to compare with, by name. None: everyone who is installed."""
    rounds: int = 3
    """How often every side is timed, in turn."""
    short: bool = False
    """Tiny models and few steps: whether everything runs, not how fast."""
    json: Path | None = None
    """Add the results to this JSON file; an item that it holds is replaced."""
    chart: Path | None = None
    """Draw the results as bars, in this PNG file."""

    def __post_init__(self) -> None:
        check_size("rounds", self.rounds)

    def bench(self, group: Group, options: dict[str, Any], *, count: int | None = None, validate: bool = False) -> None:
        """Measure; `options` are those of the items, `count` how often each is done in a round (None: its own number)."""
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
