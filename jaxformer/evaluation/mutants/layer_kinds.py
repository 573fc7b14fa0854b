"""Mutants of layers of several kinds: heads of two shapes, shared keys and values, embeddings by layer, experts beside."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxformer.evaluation.inject import Mutant, config, patch, reads_as
from jaxformer.evaluation.outcome import choice
from jaxformer.nn import experts, layer_embeddings
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.cache import KVCache
from jaxformer.nn.place import Beside
from jaxformer.nn.stacks import Stacks

SHARED = r"parts\.[23]\.blocks\.0\.attention"
FULL = r"parts\.[13]\.blocks\.0\.attention"


def of_the_first_layer(original: Callable[..., Beside]) -> Callable[..., Beside]:
    """Let every position read the keys and values of the text's first token."""

    def beside(self: Stacks, n: int, given: Beside, kept: list[KVCache | None]) -> Beside:
        found = original(self, n, given, kept)
        if found.read is None:
            return found
        read = found.read
        return found._replace(read=type(read)(jnp.roll(read.keys, 1, 1), jnp.roll(read.values, 1, 1), read.heads))

    return beside


def of_the_next_layer(original: Callable[..., Beside]) -> Callable[..., Beside]:
    """Give each layer the embeddings of the next one."""
    return lambda self, n, given, kept: original(self, n, Beside(jnp.roll(given.embeddings, -1, 0)), kept)


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
    Mutant("shared keys and values one token late", patch(Stacks, _beside=of_the_first_layer), "sharing", SHARED),
    Mutant("the embeddings of the next layer", patch(Stacks, _beside=of_the_next_layer), "sharing", "layer_input"),
    Mutant(
        "a layer's embeddings without their gate",
        patch(layer_embeddings.LayerInput, __call__=ungated),
        "sharing",
        "layer_input",
    ),
    Mutant("a layer's output without its factor", reads_as(1.0, "output_scale.scale"), "sharing", "output_scale"),
    Mutant("values without their norm", config(value_norm=False), "sharing", r"parts\.[01]\.blocks\.0\.attention"),
]
ANGLES = [
    Mutant(
        "all pairs of a head turn", config(rotary_pairs=4), "sharing", FULL, choice("attention*", "rotary scaling=none, none")
    ),
    Mutant("proportional angles not divided", config(rotary_factor=1.0), "sharing", FULL),
]
BESIDE = [
    Mutant("values that are normed keys", patch(MultiHeadAttention, keys_values=after_the_norm), "beside", FULL),
    Mutant("experts without their factors", reads_as(1.0, "expert_scale.scale"), "beside", "expert_scale"),
    Mutant("the router's input undivided", patch(experts.ExpertNorms, before=undivided), "beside", "router"),
]

MUTANTS = (*LAYERS, *ANGLES, *BESIDE)
