"""Build a model from its configuration."""

import torch

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.errors import ConfigError
from torch_ref.models.encoder import Encoder
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.models.gpt import GPT

Model = GPT | Encoder | EncoderDecoder


def build(config: ModelConfig, *, generator: torch.Generator | None = None) -> Model:
    """Build and initialise the model of that configuration, of whichever class."""
    match config:
        case GPTConfig():
            return GPT(config, generator=generator)
        case EncoderConfig():
            return Encoder(config, generator=generator)
        case EncoderDecoderConfig():
            return EncoderDecoder(config, generator=generator)
    raise ConfigError(f"{type(config).__name__} belongs to no model; give a GPTConfig, EncoderConfig or EncoderDecoderConfig")
