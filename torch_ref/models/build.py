"""Build a model from its configuration."""

import torch

from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.errors import ConfigError
from torch_ref.models.dual_encoder import DualEncoder
from torch_ref.models.encoder import Encoder
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.models.gpt import GPT
from torch_ref.models.vision_encoder import VisionEncoder

Model = GPT | Encoder | EncoderDecoder | VisionEncoder | DualEncoder


def build(config: AnyModelConfig, *, generator: torch.Generator | None = None) -> Model:
    """Build and initialise the model of that configuration, of whichever class."""
    match config:
        case GPTConfig():
            return GPT(config, generator=generator)
        case EncoderConfig():
            return Encoder(config, generator=generator)
        case EncoderDecoderConfig():
            return EncoderDecoder(config, generator=generator)
        case VisionEncoderConfig():
            return VisionEncoder(config, generator=generator)
        case DualEncoderConfig():
            return DualEncoder(config, generator=generator)
    raise ConfigError(f"{type(config).__name__} belongs to no model; give a configuration of a model, as GPTConfig")
