"""Models: tokens -> logits."""

from jaxformer.models.build import Model, abstract, build, initialiser_table, with_head
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT
from jaxformer.models.sentence_model import SentenceModel

__all__ = ["GPT", "Encoder", "EncoderDecoder", "Model", "SentenceModel", "abstract", "build", "initialiser_table", "with_head"]
