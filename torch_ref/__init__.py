"""The PyTorch twin of jaxformer: the same files, classes, attributes and arguments, in plain PyTorch.

It imports no jax. Configurations, initialiser tables and input checks are facts of both sides and come from jaxformer's
jax-free ground.
"""

from torch_ref.models import GPT, Encoder, EncoderDecoder

__all__ = ["GPT", "Encoder", "EncoderDecoder"]
