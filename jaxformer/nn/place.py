"""Places of a layer: what it is told beside its input and its masks."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from jaxformer.errors import InputError
from jaxformer.nn.cache import KeysValues
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
    embedding: Float[Array, "B T P"] | None = None
    """Embeddings of the tokens for this layer; None without per-layer embeddings."""
    read: KeysValues | None = None
    """Keys and values of an earlier layer; None in a layer that has its own."""


class Beside(NamedTuple):
    """Arguments that a stack hands on to its layers, beside input, masks and positions."""

    embeddings: Float[Array, "L B T P"] | None = None
    """Embeddings of the tokens for each layer; None without per-layer embeddings."""
    read: KeysValues | None = None
    """Keys and values of an earlier layer that all of these layers read; None: each has its own."""


NOTHING = Beside()
"""Default: layers that read their input alone."""
IN_ORDER = Place()
"""Default place: consecutive tokens, no layer pattern."""


def read_of(place: Place) -> KeysValues:
    """Return the keys and values of an earlier layer; InputError if there are none."""
    if place.read is None:
        raise InputError(
            "this layer reads the keys and values of an earlier one; call the stack, or give place=Place(read=...)"
        )
    return place.read


def embedding_of(place: Place) -> Float[Array, "B T P"]:
    """Return the embeddings of the tokens for this layer; InputError if there are none."""
    if place.embedding is None:
        raise InputError("this layer reads embeddings of its own; call the model, or give place=Place(embedding=...)")
    return place.embedding
