"""Draw a model's tensors when it is built."""

import zlib

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from jaxformer.config.dual import AnyModelConfig
from jaxformer.config.initialisers import Initialiser, initialisers
from jaxformer.errors import ConfigError
from jaxformer.pytree import layer_shapes, path_name
from jaxformer.validation.arrays import check_drawn_from, is_key


class Undrawn:
    """Stand-in for random numbers, used by `abstract`, which needs only shapes: nothing is drawn."""


Rngs = nnx.Rngs | PRNGKeyArray | Undrawn
"""Source of random numbers: a jax PRNG key, or nnx.Rngs, which gives the next key of its stream `params`."""


def initialise(model: nnx.Module, config: AnyModelConfig, rngs: Rngs | None) -> None:
    """Draw every tensor of a model under construction; a draw depends only on the key and the tensor's name.

    Works under jit, vmap and eval_shape. ConfigError if `rngs` is neither nnx.Rngs nor a key.
    """
    if isinstance(rngs, Undrawn):
        return
    key, table = initial_key(type(model).__name__, rngs), initialisers(config, layer_shapes(model))
    variables = jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    for path, variable in variables:
        name = path_name(path)
        variable[...] = draw(table[name], jax.random.fold_in(key, zlib.crc32(name.encode())), variable.shape)


def initial_key(model: str, rngs: nnx.Rngs | PRNGKeyArray | None) -> PRNGKeyArray:
    """Return the key from which the tensors are drawn; `model` is the class's name in messages."""
    if rngs is None:
        raise ConfigError(
            f"{model}(config) has no random numbers to start from; give rngs=nnx.Rngs(0), or take jaxformer.abstract(config) "
            "for shapes alone"
        )
    if isinstance(rngs, nnx.Rngs):
        if not {"params", "default"} & {*rngs}:
            raise ConfigError(f"{model}: rngs has no stream params, but {', '.join(rngs)}; give nnx.Rngs(params=0)")
        return rngs.params()
    if not is_key(rngs):
        raise ConfigError(f"{model}: rngs is {rngs!r:.50}; give nnx.Rngs(0) or jax.random.key(0)")
    check_drawn_from("rngs", rngs)
    return rngs


def draw(initialiser: Initialiser, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Draw a float32 sample."""
    match initialiser.kind:
        case "normal":
            sample = initialiser.value * jax.random.normal(key, shape, jnp.float32)
        case "uniform":
            sample = jax.random.uniform(key, shape, jnp.float32, -initialiser.value, initialiser.value)
        case "constant":
            sample = jnp.full(shape, initialiser.value, jnp.float32)
    return sample if initialiser.zero_row is None else sample.at[initialiser.zero_row].set(0.0)
