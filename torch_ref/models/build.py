"""A model by its configuration."""

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.errors import ConfigError
from torch_ref.models.encoder import Encoder
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.models.gpt import GPT

Model = GPT | Encoder | EncoderDecoder


def build(config: ModelConfig) -> Model:
    """The model of that configuration, as torch fills it."""
    match config:
        case GPTConfig():
            return GPT(config)
        case EncoderConfig():
            return Encoder(config)
        case EncoderDecoderConfig():
            return EncoderDecoder(config)
    raise ConfigError(f"{type(config).__name__} belongs to no model; give a GPTConfig, EncoderConfig or EncoderDecoderConfig")
