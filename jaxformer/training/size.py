"""What training needs at least, held against what is free before anything is allocated.

Only the JAX side has runs: the twin has none.
"""

import jax
import optax

from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
from jaxformer.memory import check_fits, free_bytes
from jaxformer.models import abstract, build
from jaxformer.pytree import n_bytes
from jaxformer.sharding.placement import init
from jaxformer.training.step import TrainState, train_state


def begin_training(config: ModelConfig, optimizer: optax.GradientTransformation, key: jax.Array, *, tokens: int) -> TrainState:
    """The state before the first step, all of which is there; InputError where a step of so many tokens cannot fit."""
    model = abstract(config)
    held = 2 * n_bytes(model) + n_bytes(jax.eval_shape(optimizer.init, model))
    free = free_on_device()
    remedy = "take a smaller --batch" if free is None or held <= free else "take smaller --model sizes"
    check_fits("training this model", held + least_activations(config, tokens), free, remedy)
    state = init(lambda key: train_state(build(config, rngs=key), optimizer), key)
    return jax.block_until_ready(state)  # all of it: where one array could not be had, another may never be ready


def least_activations(config: ModelConfig, tokens: int) -> int:
    """Bytes that a backward pass keeps at least: what goes into each layer, in float32."""
    layers = config.n_layers
    if isinstance(config, EncoderDecoderConfig):
        layers = min(config.n_layers, config.decoder.n_layers)
    return 4 * tokens * config.d_model * layers


def free_on_device() -> int | None:
    """Bytes that are free where the model is computed; None where nobody says."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else free_bytes()
