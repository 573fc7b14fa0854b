"""How far rounding alone moves what torch gives: what was noted, by array. `rerun` measures it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxformer.parity.capture.call_sites import ArrayKey
from jaxformer.parity.numerics.metrics import Noise

Perturbed = Mapping[ArrayKey, Noise]


@dataclass(frozen=True)
class Rounding:
    """All arrays of an ill-conditioned model; none of one in which rounding stays far below the lines."""

    run: Perturbed = field(default_factory=dict)
    """Along the normal run."""
    alone: Perturbed = field(default_factory=dict)
    """By the code of each module that holds parameters, on torch's own arrays."""
