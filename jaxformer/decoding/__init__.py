"""Logits -> tokens."""

from jaxformer.decoding.beam import Hypotheses, beam_search
from jaxformer.decoding.generate import generate, generate_beam
from jaxformer.decoding.sampling import GREEDY
from jaxformer.decoding.translation import translate, translate_beam

__all__ = ["GREEDY", "Hypotheses", "beam_search", "generate", "generate_beam", "translate", "translate_beam"]
