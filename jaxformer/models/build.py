"""A model by its configuration."""

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.errors import ConfigError
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT

Model = GPT | Encoder | EncoderDecoder


def build(config: ModelConfig) -> Model:
    """The model of that configuration, filled with zeros (ones for gains)."""
    match config:
        case GPTConfig():
            return GPT(config)
        case EncoderConfig():
            return Encoder(config)
        case EncoderDecoderConfig():
            return EncoderDecoder(config)
    raise ConfigError(f"{type(config).__name__} belongs to no model; give a GPTConfig, EncoderConfig or EncoderDecoderConfig")
