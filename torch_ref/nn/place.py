"""Places of a layer: what it is told beside its input and its masks."""

from typing import NamedTuple

from torch import Tensor

from jaxformer.errors import InputError
from torch_ref.nn.cache import KeysValues


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
    embedding: Tensor | None = None
    """Embeddings of the tokens for this layer, `B T P`; None without per-layer embeddings."""
    read: KeysValues | None = None
    """Keys and values of an earlier layer; None in a layer that has its own."""


class Beside(NamedTuple):
    """Arguments that a stack hands on to its layers, beside input, masks and positions."""

    embeddings: Tensor | None = None
    """Embeddings of the tokens for each layer, `L B T P`; None without per-layer embeddings."""
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


def embedding_of(place: Place) -> Tensor:
    """Return the embeddings of the tokens for this layer; InputError if there are none."""
    if place.embedding is None:
        raise InputError("this layer reads embeddings of its own; call the model, or give place=Place(embedding=...)")
    return place.embedding
