"""Least memory that training needs, compared with free memory before anything is allocated.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

import math

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
from jaxformer.models import abstract, build
from jaxformer.parallel.mesh import current
from jaxformer.parallel.placement import init, shardings
from jaxformer.pytree import n_bytes
from jaxformer.runtime.memory import check_fits, free_bytes
from jaxformer.training.step import TrainState, train_state


def begin_training(config: ModelConfig, optimizer: optax.GradientTransformation, key: jax.Array, *, tokens: int) -> TrainState:
    """Allocate and return the state before the first step; InputError if a step of so many tokens cannot fit."""
    model = abstract(config)
    state = jax.eval_shape(lambda model: train_state(model, optimizer), model)
    held, tokens = held_bytes(state) + held_bytes(state.model), tokens // memories(current())
    free = free_on_device()
    remedy = "take a smaller --batch" if free is None or held <= free else "take smaller --model sizes"
    check_fits("training this model", held + least_activations(config, tokens), free, remedy)
    state = init(lambda key: train_state(build(config, rngs=key), optimizer), key)
    return jax.block_until_ready(state)  # all of it: if one array could not be allocated, another may never be ready


def held_bytes(tree: PyTree) -> int:
    """Bytes of the devices that share one memory: all simulated devices of a process, or a single accelerator."""
    mesh = current()
    if mesh is None:
        return n_bytes(tree)
    shards = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings(tree)), strict=True)
    parts = sum(math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, where in shards)
    return parts * (mesh.size // memories(mesh))


def memories(mesh: Mesh | None) -> int:
    """Number of memories that the devices have: one each, but one for all simulated devices of a process."""
    if mesh is None:
        return 1
    return jax.process_count() if mesh.devices.flat[0].platform == "cpu" else mesh.size


def least_activations(config: ModelConfig, tokens: int) -> int:
    """Least bytes that a backward pass keeps: the input of each layer, in float32."""
    layers = config.n_layers
    if isinstance(config, EncoderDecoderConfig):
        layers = min(config.n_layers, config.decoder.n_layers)
    return 4 * tokens * config.d_model * layers


def free_on_device() -> int | None:
    """Free bytes on the device that computes the model; None if unknown."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else free_bytes()
