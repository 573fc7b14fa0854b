"""Models: tokens or images -> logits."""

from torch_ref.models.build import Model, build
from torch_ref.models.dual_encoder import DualEncoder
from torch_ref.models.encoder import Encoder
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.models.gpt import GPT
from torch_ref.models.image_size import with_image_size
from torch_ref.models.sentence_model import SentenceModel
from torch_ref.models.vision_encoder import VisionEncoder

__all__ = [
    "GPT",
    "DualEncoder",
    "Encoder",
    "EncoderDecoder",
    "Model",
    "SentenceModel",
    "VisionEncoder",
    "build",
    "with_image_size",
]
