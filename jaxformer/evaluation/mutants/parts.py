"""Mutants of the parts of a transformer: activations, norms, embeddings, and their gradients."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxformer.evaluation.inject import Injection, Mutant, config, instead, patch, reads_as, swapped
from jaxformer.evaluation.mutants.attention import weight_of
from jaxformer.evaluation.outcome import choice
from jaxformer.nn import embeddings, feedforward, linear, norms, positions


def layer_norm_as(normalise: Callable[[Array, float], Array]) -> Injection:
    """Replace the formula of LayerNorm by normalise(x, epsilon)."""
    return instead(norms.FUNCTIONS, layer=normalise)


def mean(x: Array) -> Array:
    """Mean over the last axis, which is kept."""
    return x.mean(-1, keepdims=True)


def variance(x: Array, correction: int = 0) -> Array:
    """Variance over the last axis, which is kept."""
    return x.var(-1, keepdims=True, ddof=correction)


def fast_variance(x: Array) -> Array:
    """Variance as E[x^2] - E[x]^2, which cancels if the mean is large."""
    return mean(x * x) - mean(x) * mean(x)


def positions_off_by(n: int) -> Injection:
    """Give token t the position t + n."""

    def shifted(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda self, ids, positions, **rest: original(self, ids, positions + n, **rest)

    return patch(embeddings.InputEmbedding, __call__=shifted)


def in_blocks(original: Callable[[int, int], np.ndarray]) -> Callable[[int, int], np.ndarray]:
    """Put all sines before all cosines (order of Marian and fairseq), in place of alternating them."""

    def table(n_positions: int, d_model: int) -> np.ndarray:
        alternating = original(n_positions, d_model)
        return np.concatenate([alternating[:, 0::2], alternating[:, 1::2]], -1)

    return table


def padding_row_frozen(original: Callable[..., Array]) -> Callable[..., Array]:
    """Stop the gradient of row 0 of the table, as torch's `padding_idx=0` does."""

    def encode(self: embeddings.Embedding, ids: Array) -> Array:
        x = original(self, ids)
        return jnp.where((ids == 0)[..., None], jax.lax.stop_gradient(x), x)

    return encode


NO_GAIN = choice("norm", "gain=as it is, left out")

ACTIVATIONS = [
    Mutant(
        "GELU by tanh for GELU by erf",
        config(activation="gelu_tanh"),
        diverging="feed_forward",
        cause=choice("activation", "activation=gelu, gelu by tanh"),
    ),
    Mutant(
        "quick-GELU for GELU",
        instead(feedforward.ACTIVATIONS, gelu=lambda x: x * jax.nn.sigmoid(1.702 * x)),
        diverging="feed_forward",
        cause=choice("activation", "activation=gelu, quick gelu"),
    ),
    Mutant(
        "GELU for quick-GELU",
        config(activation="gelu"),
        "switched",
        diverging="feed_forward",
        cause=choice("activation", "activation=quick gelu, gelu"),
    ),
    Mutant(
        "ReLU for SiLU in the gate",
        config(activation="relu"),
        "rich",
        diverging="feed_forward",
        cause=choice("activation", "activation=silu, relu"),
    ),
    Mutant("gate and up swapped", swapped("gate", "up"), "rich", diverging="gate|up", cause=weight_of("up", "gate")),
]

NORMS = [
    Mutant(
        "LayerNorm epsilon 1e-6 for 1e-5",
        config(norm_epsilon=1e-6),
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "epsilon=1e-05, 1e-06"),
    ),
    Mutant(
        "LayerNorm epsilon 1e-12 for 1e-5",
        config(norm_epsilon=1e-12),
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "epsilon=1e-05, 1e-12"),
    ),
    Mutant(
        "RMSNorm epsilon 1e-6 for 1e-5",
        config(norm_epsilon=1e-6),
        "rich",
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "epsilon=1e-05, 1e-06"),
    ),
    Mutant(
        "epsilon outside the root",
        layer_norm_as(lambda x, e: (x - mean(x)) / (jnp.sqrt(variance(x)) + e)),
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "epsilon's place=in the root, outside the root"),
    ),
    Mutant(
        "epsilon inside the root",
        instead(norms.FUNCTIONS, std=lambda x, e: (x - mean(x)) / jnp.sqrt(variance(x, 1) + e)),
        "fused",
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "epsilon's place=outside the root, in the root"),
    ),
    Mutant(
        "unbiased deviation for biased",
        layer_norm_as(lambda x, e: (x - mean(x)) / jnp.sqrt(variance(x, 1) + e)),
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "variance=biased, unbiased"),
    ),
    Mutant(
        "biased deviation for unbiased",
        instead(norms.FUNCTIONS, std=lambda x, e: (x - mean(x)) / (jnp.sqrt(variance(x)) + e)),
        "fused",
        diverging="attention_norm|feed_forward_norm|norm",
        cause=choice("norm", "variance=unbiased, biased"),
    ),
    Mutant(
        "fast variance",
        layer_norm_as(lambda x, e: (x - mean(x)) / jnp.sqrt(fast_variance(x) + e)),
        "shifted",
        diverging="attention_norm|feed_forward_norm|norm",
    ),
    Mutant(
        "LayerNorm bias dropped",
        reads_as(0.0, "attention_norm.bias"),
        diverging="attention_norm",
        cause=choice("norm", "bias=added, left out"),
    ),
    Mutant(
        "LayerNorm gain dropped",
        reads_as(1.0, "feed_forward_norm.scale"),
        diverging="feed_forward_norm",
        cause=NO_GAIN,
    ),
    Mutant("final LayerNorm gain dropped", reads_as(1.0, "norm.scale"), diverging="norm", cause=NO_GAIN),
    Mutant("norm after the residual sum for before it", config(norm_position="post")),
    Mutant("LayerNorm without its bias", config(norm_bias=False)),
]

EMBEDDINGS = [
    Mutant(
        "learned positions off by one",
        positions_off_by(1),
        diverging="embed",
        cause="ids.shifted by=1 'at=input of embed.position'",
    ),
    Mutant(
        "learned positions off by two",
        positions_off_by(2),
        diverging="embed",
        cause="ids.shifted by=2 'at=input of embed.position'",
    ),
    Mutant(
        "sinusoid positions off by one",
        positions_off_by(1),
        "rich",
        diverging="embed",
        cause=choice("embedding", "first position=0, 1"),
    ),
    Mutant(
        "sinusoid positions off by two",
        positions_off_by(2),
        "rich",
        diverging="embed",
        cause=choice("embedding", "first position=0, 2"),
    ),
    Mutant(
        "sinusoid in blocks",
        patch(positions.TABLES, sinusoid=in_blocks),
        "rich",
        diverging="embed",
        cause=choice("embedding", "positions=sinusoid, sinusoid in blocks"),
    ),
    Mutant("sinusoid positions for those that are given", config(positions="sinusoid"), "switched", diverging="embed"),
    Mutant(
        "embedding scale missing",
        config(embedding_scale=False),
        "rich",
        diverging="embed",
        cause=choice("embedding", "embedding scale=sqrt(d_model), 1"),
    ),
]

HEADS = [
    Mutant(
        "logits scale missing",
        config(logits_scale=1.0),
        "switched",
        diverging="head",
        cause=choice("linear layer", "scale=1/sqrt(d_model), 1"),
    ),
]

GRADIENTS = [
    Mutant(
        "the padding id's row looked up with a gradient",
        config(padding_idx=None),
        "switched",
        diverging=r"embed\.token",
        cause="gradient.zero side=torch 'where=row 0 of 23' other=jax 'why=*padding_idx*'",
    ),
    Mutant(
        "no gradient for the padding id's row",
        patch(embeddings.Embedding, encode=padding_row_frozen),
        diverging=r"embed\.(token|position)",
        cause="gradient.zero side=jax 'where=row 0 of *' other=torch",
    ),
    Mutant(
        "weight gradient halved",
        patch(linear, _weight_tangent=lambda f: lambda x, dw: 0.5 * f(x, dw)),
        diverging="query|key|value|out|up|down|head",
        cause="gradient.factor by=0.5 *",
    ),
]

MUTANTS = (*ACTIVATIONS, *NORMS, *EMBEDDINGS, *HEADS, *GRADIENTS)
