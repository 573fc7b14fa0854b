"""Models: tokens -> logits."""

from jaxformer.models.build import Model, build
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT
from jaxformer.models.init import init, initialiser_table

__all__ = ["GPT", "Encoder", "EncoderDecoder", "Model", "build", "init", "initialiser_table"]
