"""Pooling of an image: the states of its tokens -> one vector; and the logits of an image."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.feedforward import ACTIVATIONS, FeedForward
from jaxformer.nn.linear import Linear
from jaxformer.nn.norms import make_norm


class DensePooling(nnx.Module):
    """activation(dense(x)) of the class token's state (BERT's and ViT's pooler)."""

    def __init__(self, config: VisionEncoderConfig):
        self.activation = config.pooler_activation
        self.dense = Linear(config.d_model, config.d_model, True)

    def __call__(self, states: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        return ACTIVATIONS[self.activation](self.dense(states[:, 0]))


class AttentionPooling(nnx.Module):
    """x + feed_forward(norm(x)) of x, what one learned query attends to (Zhai et al. 2022, section 3.4; SigLIP)."""

    def __init__(self, config: VisionEncoderConfig):
        self.query = Embedding(1, config.d_model)
        self.attention = MultiHeadAttention(replace(config, attention_dropout=0.0), cross=True)
        self.norm = make_norm(config.norm, config)
        self.feed_forward = FeedForward(config)

    def __call__(self, states: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        query = jnp.broadcast_to(self.query.table[...][None], (states.shape[0], 1, states.shape[-1]))
        x = self.attention(query, states)
        return (x + self.feed_forward(self.norm(x)))[:, 0]


class ImageHead(nnx.Module):
    """output(pooled), or the mean of it and of distilled(the distillation token's state)."""

    def __init__(self, config: VisionEncoderConfig):
        distilled = config.head == "distilled_image_classification"
        self.output = Linear(config.pooled_width, len(config.labels), True)
        self.distilled = Linear(config.d_model, len(config.labels), True) if distilled else None

    def __call__(self, pooled: Float[Array, "B X"], states: Float[Array, "B T D"]) -> Float[Array, "B C"]:
        logits = self.output(pooled)
        return logits if self.distilled is None else (logits + self.distilled(states[:, 1])) / 2


def make_pooler(config: VisionEncoderConfig) -> DensePooling | AttentionPooling | None:
    """Build the pooling of a configuration; None for one without parameters."""
    match config.pooling:
        case "dense":
            return DensePooling(config)
        case "attention":
            return AttentionPooling(config)
    return None


def make_image_head(config: VisionEncoderConfig) -> ImageHead | None:
    """Build the head of a configuration; None without one."""
    return None if config.head == "none" else ImageHead(config)
