"""Statistics of the arrays that go into each call and come out of it, in the order of the run."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.core import Tracer

from jaxformer.convert.host import host
from jaxformer.parity.numerics.float_masks import is_mask
from jaxformer.parity.numerics.statistics import Statistics, statistics_of
from jaxformer.parity.trace.call_records import arrays_in
from jaxformer.parity.trace.call_sites import ATTENTION, CALL, Site, last
from jaxformer.parity.trace.not_finite import Counted
from jaxformer.parity.trace.selection import ALL, Selection


@dataclass(frozen=True)
class Event:
    """Beginning or end of a call."""

    site: Site
    part: str
    """'inputs' or 'output'."""
    maker: Site
    """Call whose own code makes the arrays: the call itself for its output, the call around it for its inputs."""
    arrays: tuple[Statistics, ...]
    """Arrays of numbers, masks left out; of the output of the whole call, every array."""


@dataclass
class Summarizing:
    """Observer that keeps statistics in place of arrays."""

    selection: Selection = ALL
    events: list[Event] = field(default_factory=list)
    running: list[Site] = field(default_factory=lambda: [CALL])
    """Selected calls that have begun and not ended."""
    paths: set[str] = field(default_factory=set)
    """Paths of all calls."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Note the inputs of a call."""
        if self._notes(site):
            self.events.append(Event(site, "inputs", self.running[-1], summarized(arrays_in(arguments))))
            self.running.append(site)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        """Note the output of a call."""
        if self._notes(site):
            self.running.pop()
            self.events.append(Event(site, "output", site, summarized(arrays_in(output))))
        return output

    def end(self, outputs: Iterable[Any]) -> None:
        """Note the outputs of the whole call."""
        self.events.append(Event(CALL, "output", CALL, tuple(map(statistics_of, on_host(outputs)))))

    def _notes(self, site: Site) -> bool:
        if last(site.path) in ATTENTION:
            return False
        self.paths.add(site.path)
        return self.selection.has(site.path)


def summarized(arrays: Iterable[Any]) -> tuple[Statistics, ...]:
    """Return the statistics of the arrays of numbers that are no masks."""
    return tuple(statistics_of(array) for array in on_host(arrays) if array.dtype.kind in "iufc" and not is_mask(array))


def on_host(arrays: Iterable[Any]) -> Iterator[np.ndarray]:
    """Convert the arrays that have values to numpy."""
    return (host(array) for array in arrays if not isinstance(array, Tracer))


def counted(events: Iterable[Event]) -> Iterator[Counted]:
    """Count the entries that are not finite."""
    for event in events:
        for array in event.arrays:
            yield event.site, event.part, array.not_finite, math.prod(array.shape)
