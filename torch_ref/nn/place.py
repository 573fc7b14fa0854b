"""Places of a layer: what it is told beside its input and its masks."""

from typing import NamedTuple

from torch import Tensor


class Place(NamedTuple):
    """Positions of the tokens and kind of the layer, for rotary positions and sliding windows."""

    positions: Tensor | None = None
    """Positions of the tokens, `#B T`; None: 0, 1, 2, ..., counted on from the cached tokens."""
    windowed: bool | None = None
    """True if this layer has the sliding window; None without a layer pattern."""
    rotated: bool | None = None
    """True if this layer has rotary positions; None without a rotary pattern."""
    distances: Tensor | None = None
    """Encodings of distances, of disentangled attention: `1 R D`."""


IN_ORDER = Place()
"""Default place: consecutive tokens, no layer pattern."""
