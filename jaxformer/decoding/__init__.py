"""Logits -> tokens."""

from jaxformer.decoding.generate import generate

__all__ = ["generate"]
