"""The bugs people make when they port a transformer: each is put into the JAX side, and has to be noticed."""

from jaxformer.selfcheck.mutants.attention import ATTENTIONS
from jaxformer.selfcheck.mutants.decoding import DECODING
from jaxformer.selfcheck.mutants.models import MODELS
from jaxformer.selfcheck.mutants.parts import PARTS
from jaxformer.selfcheck.mutants.training import TRAINING

MUTANTS = (*PARTS, *ATTENTIONS, *MODELS, *TRAINING, *DECODING)
