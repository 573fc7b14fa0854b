"""A freshly initialised model."""

import zlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxformer.config.initialisers import Initialiser, initialisers
from jaxformer.config.models import ModelConfig
from jaxformer.models.build import Model, build
from jaxformer.pytree import layer_shapes, map_named


def initialiser_table(config: ModelConfig) -> dict[str, Initialiser]:
    """Which distribution each tensor of the model starts from, by its name."""
    shapes = layer_shapes(jax.eval_shape(lambda: build(config)))
    return initialisers(config, shapes)


def init(config: ModelConfig, key: PRNGKeyArray) -> Model:
    """The model with every tensor drawn from its initialiser; a tensor's draw depends on the key and its name alone."""
    table = initialiser_table(config)

    def fill(name: str, leaf: jax.ShapeDtypeStruct) -> Array:
        return draw(table[name], jax.random.fold_in(key, zlib.crc32(name.encode())), leaf.shape)

    return map_named(fill, jax.eval_shape(lambda: build(config)))


def draw(initialiser: Initialiser, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """A float32 sample."""
    match initialiser.kind:
        case "normal":
            sample = initialiser.value * jax.random.normal(key, shape, jnp.float32)
        case "uniform":
            sample = jax.random.uniform(key, shape, jnp.float32, -initialiser.value, initialiser.value)
        case "constant":
            sample = jnp.full(shape, initialiser.value, jnp.float32)
    return sample if initialiser.zero_row is None else sample.at[initialiser.zero_row].set(0.0)
