"""How far rounding alone moves what torch gives: what was noted, by array. `rerun` measures it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.numerics.metrics import Noise


class Spot(NamedTuple):
    """One array of a reference."""

    path: str
    """Of the module, or the name of a weight or input."""
    call: int
    part: str
    """Of a record, as 'output'; 'gradient' of a weight or input."""
    number: int

    @property
    def site(self) -> Site:
        """The call."""
        return Site(self.path, self.call)

    @classmethod
    def of(cls, site: Site, part: str, number: int) -> "Spot":
        """An array of a call."""
        return cls(*site, part, number)

    @classmethod
    def gradient(cls, name: str) -> "Spot":
        """Of a weight or input."""
        return cls(name, 0, "gradient", 0)


Moved = Mapping[Spot, Noise]


@dataclass(frozen=True)
class Rounding:
    """All arrays of an ill-conditioned model; none of one in which rounding stays far below the lines."""

    run: Moved = field(default_factory=dict)
    """Along the normal run."""
    alone: Moved = field(default_factory=dict)
    """By the code of each module that holds parameters, on torch's own arrays."""
