"""Models: tokens -> logits."""

from torch_ref.models.build import Model, build
from torch_ref.models.encoder import Encoder
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.models.gpt import GPT
from torch_ref.models.sentence_model import SentenceModel

__all__ = ["GPT", "Encoder", "EncoderDecoder", "Model", "SentenceModel", "build"]
