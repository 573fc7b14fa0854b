"""The PyTorch twin of jaxformer: the same files, classes, attributes and arguments, in plain PyTorch.

It does not import jax. Configurations, initialiser tables and input checks are shared by both sides and come from jaxformer's
jax-free modules.
"""

from torch_ref.models import GPT, DualEncoder, Encoder, EncoderDecoder, VisionEncoder

__all__ = ["GPT", "DualEncoder", "Encoder", "EncoderDecoder", "VisionEncoder"]
