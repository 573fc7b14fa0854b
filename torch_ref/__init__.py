"""The PyTorch twin of jaxformer: the same files, classes, attributes and arguments, in plain PyTorch.

It does not import jax. Configurations, initialiser tables and input checks are shared by both sides and come from jaxformer's
jax-free modules.
"""

from torch_ref.models import GPT, Encoder, EncoderDecoder

__all__ = ["GPT", "Encoder", "EncoderDecoder"]
