"""Build a model from its configuration."""

from dataclasses import fields

import jax

from jaxformer.config.initialisers import Initialiser, initialisers
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.errors import ConfigError
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT
from jaxformer.models.init import Rngs, Undrawn
from jaxformer.pytree import layer_shapes, map_named, named_leaves
from jaxformer.validation.inputs import check_config

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


def with_head(model: Encoder, config: EncoderConfig, *, rngs: Rngs) -> Encoder:
    """Return the encoder with another head, for fine-tuning: `config` is the model's own but for pooler and head.

        base = jf.load("folder")
        config = replace(base.config, head="sequence_classification", labels=("negative", "positive"))
        model = jf.with_head(base, config, rngs=nnx.Rngs(0))

    Parameters that both have in equal shapes are the model's, and the others are drawn. ConfigError if the rest of `config`
    differs.
    """
    check_config(config, EncoderConfig)
    same = ("token_types", *(it.name for it in fields(ModelConfig)))
    for name in same:
        if getattr(config, name) != getattr(model.config, name):
            raise ConfigError(
                f"{name} = {getattr(config, name)!r:.40} is {getattr(model.config, name)!r:.40} in the encoder, which keeps "
                "its parameters; change only the fields of pooler and head"
            )
    held = named_leaves(model)

    def kept(name: str, drawn: jax.Array) -> jax.Array:
        return held[name] if name in held and held[name].shape == drawn.shape else drawn

    return map_named(kept, Encoder(config, rngs=rngs))
