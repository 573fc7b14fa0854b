"""Mutants of layers of several kinds: heads of two shapes, shared keys and values, embeddings by layer, experts beside."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxformer.evaluation.inject import Mutant, config, patch, reads_as
from jaxformer.nn import attention, experts, layer_embeddings
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.cache import KeysValues
from jaxformer.nn.place import Place

SHARED = r"parts\.2\.blocks\.0\.attention"
OWN = r"parts\.[01]\.blocks\.0\.attention"
FULL = r"parts\.1\.blocks\.0\.attention"


def one_token_late(original: Callable[..., KeysValues]) -> Callable[..., KeysValues]:
    """Read the keys and values of the token before each."""

    def read(place: Place) -> KeysValues:
        found = original(place)
        return replace(found, keys=jnp.roll(found.keys, 1, 1), values=jnp.roll(found.values, 1, 1))

    return read


def after_the_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the normed keys for values."""

    def keys_values(self: MultiHeadAttention, source: Array) -> Any:
        found = original(self, source)
        return found if self.value is not None else type(found)(found.keys, found.keys, found.heads)

    return keys_values


def undivided(original: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """Let the router read x without its division by sqrt(D)."""

    def before(self: experts.ExpertNorms, x: Array) -> tuple[Array, ...]:
        _, *others = original(self, x)
        return self.router_norm(x), *others

    return before


def ungated(original: Callable[..., Array]) -> Callable[..., Array]:
    """Let all of a layer's embeddings through."""
    return lambda self, x, embedding: self.norm(self.up(embedding))


LAYERS = [
    Mutant("shared keys and values one token late", patch(attention, read_of=one_token_late), "sharing", SHARED),
    Mutant(
        "a layer's embeddings without their gate",
        patch(layer_embeddings.LayerInput, __call__=ungated),
        "sharing",
        "layer_input",
        "operations.operand_alone ordinal=second 'at=`ACTIVATIONS*'",
    ),
    Mutant(
        "a layer's output without its factor",
        reads_as(1.0, "output_scale.scale"),
        "sharing",
        "output_scale",
        "sum.factors 'input=*, 1'",
    ),
    Mutant("values without their norm", config(value_norm=False), "sharing", OWN),
    Mutant("all pairs of a head turn", config(rotary_pairs=4), "sharing", FULL),
]
BESIDE = [
    Mutant("values that are normed keys", patch(MultiHeadAttention, keys_values=after_the_norm), "beside", FULL),
    Mutant(
        "experts without their factors",
        reads_as(1.0, "expert_scale.scale"),
        "beside",
        "expert_scale",
        "parameters.read how=ones at=weight",
    ),
    Mutant(
        "the router's input undivided",
        patch(experts.ExpertNorms, before=undivided),
        "beside",
        r"feed_forward\.norms",
        "sum.factors 'router_norm=0.2041, 1'",
    ),
]

MUTANTS = (*LAYERS, *BESIDE)
