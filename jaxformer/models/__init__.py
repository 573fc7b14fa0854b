"""Models: tokens or images -> logits."""

from jaxformer.models.build import Model, TextModel, abstract, build, initialiser_table, with_head
from jaxformer.models.dual_encoder import DualEncoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.gpt import GPT
from jaxformer.models.image_size import with_image_size
from jaxformer.models.sentence_model import SentenceModel
from jaxformer.models.vision_encoder import VisionEncoder

__all__ = [
    "GPT",
    "DualEncoder",
    "Encoder",
    "EncoderDecoder",
    "Model",
    "SentenceModel",
    "TextModel",
    "VisionEncoder",
    "abstract",
    "build",
    "initialiser_table",
    "with_head",
    "with_image_size",
]
