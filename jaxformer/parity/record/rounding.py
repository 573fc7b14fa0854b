"""How far rounding alone perturbs torch's arrays. `rounding_error` measures it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxformer.parity.capture.call_sites import ArrayKey
from jaxformer.parity.numerics.metrics import Noise

Perturbed = Mapping[ArrayKey, Noise]


@dataclass(frozen=True)
class Rounding:
    """All arrays of an ill-conditioned model; none where rounding stays far below the tolerances."""

    run: Perturbed = field(default_factory=dict)
    """Along the normal run."""
    alone: Perturbed = field(default_factory=dict)
    """In each module that holds parameters, given torch's own arrays."""
