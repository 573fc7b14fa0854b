"""Parts of a transformer: pure functions first, then modules that own weights.

A module is built from its configuration with zeros (ones for gains): a model draws the weights of all its parts when it is
built, and `jaxformer.from_torch` fills a part on its own. A module holds trainable float arrays and nothing else: no random
state, no mode, no buffer.

A PRNG key is the argument `key`, as everywhere in JAX; in attention, where `key` is a projection, it is `rng`.
"""

from jaxformer.nn.attention import MultiHeadAttention, Sinks, attention_weights
from jaxformer.nn.blocks import AttentionWeights, Block
from jaxformer.nn.cache import KeysValues, KVCache, empty_cache
from jaxformer.nn.embeddings import Embedding, InputEmbedding
from jaxformer.nn.feedforward import ACTIVATIONS, FeedForward
from jaxformer.nn.heads import Head
from jaxformer.nn.linear import Linear
from jaxformer.nn.masks import causal_mask, combine, ids_to_valid, lengths_to_valid, padding_mask, window_mask
from jaxformer.nn.norms import ScaledNorm, layer_norm, rms_norm, std_norm
from jaxformer.nn.place import Place
from jaxformer.nn.positions import RelativeBias, sinusoid, sinusoid_blocks
from jaxformer.nn.rotary import rotate
from jaxformer.nn.stack import Stack

__all__ = [
    "ACTIVATIONS",
    "AttentionWeights",
    "Block",
    "Embedding",
    "FeedForward",
    "Head",
    "InputEmbedding",
    "KVCache",
    "KeysValues",
    "Linear",
    "MultiHeadAttention",
    "Place",
    "RelativeBias",
    "ScaledNorm",
    "Sinks",
    "Stack",
    "attention_weights",
    "causal_mask",
    "combine",
    "empty_cache",
    "ids_to_valid",
    "layer_norm",
    "lengths_to_valid",
    "padding_mask",
    "rms_norm",
    "rotate",
    "sinusoid",
    "sinusoid_blocks",
    "std_norm",
    "window_mask",
]
