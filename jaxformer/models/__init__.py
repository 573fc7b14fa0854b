"""Models: tokens -> logits."""

from jaxformer.models.gpt import GPT
from jaxformer.models.init import init, initialiser_table

__all__ = ["GPT", "init", "initialiser_table"]
