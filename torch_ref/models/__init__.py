"""Models: tokens -> logits."""

from torch_ref.models.gpt import GPT
from torch_ref.models.init import init

__all__ = ["GPT", "init"]
