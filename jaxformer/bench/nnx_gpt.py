"""GPT as a user of Flax NNX writes it, with Flax's own layers and the torch twin's weights."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import safetensors.numpy
from flax import nnx

from jaxformer.config.models import GPTConfig

ACTIVATIONS = {
    "relu": nnx.relu,
    "gelu": lambda x: nnx.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nnx.gelu(x, approximate=True),
}


class Block(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        width, epsilon = config.d_model, config.norm_epsilon
        self.attention_norm = nnx.LayerNorm(width, epsilon=epsilon, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            config.n_heads, width, decode=False, dropout_rate=config.attention_dropout, rngs=rngs
        )
        self.feed_forward_norm = nnx.LayerNorm(width, epsilon=epsilon, rngs=rngs)
        self.up, self.down = nnx.Linear(width, config.d_ff, rngs=rngs), nnx.Linear(config.d_ff, width, rngs=rngs)
        self.dropout = nnx.Dropout(config.residual_dropout, rngs=rngs)
        self.activation = config.activation

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask))
        return x + self.dropout(self.down(ACTIVATIONS[self.activation](self.up(self.feed_forward_norm(x)))))


class GPT(nnx.Module):
    """GPT of nnx layers: `logits = model(tokens)`."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        self.token = nnx.Embed(config.vocab_size, config.d_model, rngs=rngs)
        self.position = nnx.Embed(config.context, config.d_model, rngs=rngs)
        self.dropout = nnx.Dropout(config.embedding_dropout, rngs=rngs)
        self.blocks = nnx.List(Block(config, rngs) for _ in range(config.n_layers))
        self.norm = nnx.LayerNorm(config.d_model, epsilon=config.norm_epsilon, rngs=rngs)
        head = nnx.Linear(config.d_model, config.vocab_size, use_bias=config.head_bias, rngs=rngs)
        self.head = None if config.tied else head

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.dropout(self.token(tokens) + self.position(jnp.arange(tokens.shape[1])))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return self.token.attend(x) if self.head is None else self.head(x)


def load_gpt(path: Path, config: GPTConfig) -> GPT:
    """Load a GPT with the twin's weights, in training mode."""
    weights = safetensors.numpy.load_file(path)
    model = GPT(config, nnx.Rngs(0))
    model.token.embedding[...] = weights["embed.token.weight"]
    model.position.embedding[...] = weights["embed.position.weight"]
    load_norm(model.norm, weights, "norm")
    if model.head is not None:
        load_linear(model.head, weights, "head")
    for i, block in enumerate(model.blocks):
        load_block(block, weights, f"stack.blocks.{i}.", (config.n_heads, config.head_width))
    return model


def load_block(block: Block, weights: dict[str, Any], start: str, heads: tuple[int, int]) -> None:
    """Load a block's weights, whose names begin with `start`; the twin packs queries, keys and values."""
    for norm in ("attention_norm", "feed_forward_norm"):
        load_norm(getattr(block, norm), weights, start + norm)
    load_linear(block.up, weights, f"{start}feed_forward.up")
    load_linear(block.down, weights, f"{start}feed_forward.down")
    kernels, biases = (weights[f"{start}attention.qkv.{leaf}"].reshape(3, *heads, -1) for leaf in ("weight", "bias"))
    for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        projection = getattr(block.attention, name)
        projection.kernel[...], projection.bias[...] = kernel.transpose(2, 0, 1), bias[..., 0]
    out: Any = block.attention.out
    out.kernel[...] = weights[f"{start}attention.out.weight"].T.reshape(*heads, -1)
    out.bias[...] = weights[f"{start}attention.out.bias"]


def load_norm(norm: nnx.LayerNorm, weights: dict[str, Any], name: str) -> None:
    """Load gain and bias of a norm."""
    for leaf, other in (("scale", "weight"), ("bias", "bias")):
        getattr(norm, leaf)[...] = weights[f"{name}.{other}"]


def load_linear(linear: nnx.Linear, weights: dict[str, Any], name: str) -> None:
    """Load matrix and bias of a linear layer."""
    for leaf, value in (("kernel", weights[f"{name}.weight"].T), ("bias", weights.get(f"{name}.bias"))):
        if value is not None:
            getattr(linear, leaf)[...] = value
