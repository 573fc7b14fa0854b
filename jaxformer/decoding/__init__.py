"""Logits -> tokens."""

from jaxformer.decoding.beam import beam_search
from jaxformer.decoding.generate import generate
from jaxformer.decoding.sampling import GREEDY
from jaxformer.decoding.translation import Hypotheses, translate, translate_beam

__all__ = ["GREEDY", "Hypotheses", "beam_search", "generate", "translate", "translate_beam"]
