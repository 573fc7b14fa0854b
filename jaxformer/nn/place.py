"""Places of a layer: what it is told beside its input and its masks."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from jaxformer.nn.rotary import Positions


class Place(NamedTuple):
    """Positions of the tokens and kind of the layer, for rotary positions and sliding windows."""

    positions: Positions | None = None
    """Positions of the tokens; None: 0, 1, 2, ..., counted on from the cached tokens."""
    windowed: Bool[Array, ""] | None = None
    """True if this layer has the sliding window; None without a layer pattern."""
    rotated: Bool[Array, ""] | None = None
    """True if this layer has rotary positions; None without a rotary pattern."""
    distances: Float[Array, "1 R D"] | None = None
    """Encodings of distances, of disentangled attention."""


IN_ORDER = Place()
"""Default place: consecutive tokens, no layer pattern."""
