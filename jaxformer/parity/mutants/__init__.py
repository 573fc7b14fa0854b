"""The bugs people make when they port a transformer: each is put into the JAX side, and has to be noticed."""

from jaxformer.parity.mutants.attention import ATTENTIONS
from jaxformer.parity.mutants.decoding import DECODING
from jaxformer.parity.mutants.models import MODELS
from jaxformer.parity.mutants.parts import PARTS
from jaxformer.parity.mutants.training import TRAINING

MUTANTS = (*PARTS, *ATTENTIONS, *MODELS, *TRAINING, *DECODING)
