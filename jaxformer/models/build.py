"""Build a model from its configuration."""

import jax

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, Initialiser, ModelConfig, initialisers
from jaxformer.errors import ConfigError
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT
from jaxformer.models.init import Rngs, Undrawn
from jaxformer.pytree import layer_shapes

Model = GPT | Encoder | EncoderDecoder


def build(config: ModelConfig, *, rngs: Rngs | None = None) -> Model:
    """Build and initialise the model of that configuration, of whichever class."""
    match config:
        case GPTConfig():
            return GPT(config, rngs=rngs)
        case EncoderConfig():
            return Encoder(config, rngs=rngs)
        case EncoderDecoderConfig():
            return EncoderDecoder(config, rngs=rngs)
    raise ConfigError(f"{type(config).__name__} belongs to no model; give a GPTConfig, EncoderConfig or EncoderDecoderConfig")


def abstract(config: ModelConfig) -> Model:
    """Build the model with shapes and dtypes in place of arrays, for `from_torch` and `load_weights`."""
    return jax.eval_shape(lambda: build(config, rngs=Undrawn()))


def initialiser_table(config: ModelConfig) -> dict[str, Initialiser]:
    """Return the initial distribution of each tensor of the model, by its name."""
    return initialisers(config, layer_shapes(abstract(config)))
