"""Build a model from its configuration."""

from dataclasses import fields
from typing import Any, TypeVar

import jax

from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.initialisers import Initialiser, initialisers
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.errors import ConfigError
from jaxformer.models.dual_encoder import DualEncoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT
from jaxformer.models.init import Rngs, Undrawn
from jaxformer.models.vision_encoder import VisionEncoder
from jaxformer.pytree import layer_shapes, map_named, named_leaves
from jaxformer.validation.inputs import check_config

TextModel = GPT | Encoder | EncoderDecoder
"""Model that reads token ids alone."""
Model = TextModel | VisionEncoder | DualEncoder
Headed = TypeVar("Headed", Encoder, VisionEncoder)


def build(config: AnyModelConfig, *, rngs: Rngs | None = None) -> Model:
    """Build and initialise the model of that configuration, of whichever class."""
    match config:
        case GPTConfig():
            return GPT(config, rngs=rngs)
        case EncoderConfig():
            return Encoder(config, rngs=rngs)
        case EncoderDecoderConfig():
            return EncoderDecoder(config, rngs=rngs)
        case VisionEncoderConfig():
            return VisionEncoder(config, rngs=rngs)
        case DualEncoderConfig():
            return DualEncoder(config, rngs=rngs)
    raise ConfigError(f"{type(config).__name__} belongs to no model; give a configuration of a model, as GPTConfig")


def abstract(config: AnyModelConfig) -> Model:
    """Build the model with shapes and dtypes in place of arrays, for `from_torch` and `load_weights`."""
    return jax.eval_shape(lambda: build(config, rngs=Undrawn()))


def initialiser_table(config: AnyModelConfig) -> dict[str, Initialiser]:
    """Return the initial distribution of each tensor of the model, by its name."""
    return initialisers(config, layer_shapes(abstract(config)))


OF_HEADS = {"head", "head_activation", "head_dense_bias", "head_dropout", "head_pooling", "head_transform", "labels"}
OF_HEADS |= {"pooled_norm", "pooler", "pooler_activation", "pooling"}
"""Fields of an encoder's pooling and head."""


def with_head(model: Headed, config: EncoderConfig | VisionEncoderConfig, *, rngs: Rngs) -> Headed:
    """Return the encoder with another head, for fine-tuning: `config` is the model's own but for its pooling and head.

        base = jf.load("folder")
        config = replace(base.config, head="sequence_classification", labels=("negative", "positive"))
        model = jf.with_head(base, config, rngs=nnx.Rngs(0))

    Parameters that both have in equal shapes are the model's, and the others are drawn. ConfigError if the rest of `config`
    differs.
    """
    check_config(config, type(model.config))
    for name in (it.name for it in fields(config) if it.name not in OF_HEADS):
        if getattr(config, name) != getattr(model.config, name):
            raise ConfigError(
                f"{name} = {getattr(config, name)!r:.40} is {getattr(model.config, name)!r:.40} in the encoder, which keeps "
                "its parameters; change only the fields of its pooling and head"
            )
    held = named_leaves(model)

    def kept(name: str, drawn: jax.Array) -> jax.Array:
        return held[name] if name in held and held[name].shape == drawn.shape else drawn

    drawn: Any = build(config, rngs=rngs)
    return map_named(kept, drawn)
