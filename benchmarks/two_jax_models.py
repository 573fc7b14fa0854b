"""Five kinds of models, each in Flax Linen and in Flax NNX with the same names, tiny, with all sizes distinct.

A layer is `Dense` in Linen and `Linear` in NNX, so that weights go from one to the other by their names.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

VOCAB, WIDTH, HEADS, HIDDEN, LENGTH, CLASSES = 23, 12, 3, 20, 9, 5
EXPERTS, CHANNELS, PATCH = 4, 6, 3
SIZE = WIDTH // HEADS


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Attend in heads: arrays `B T D`, and a boolean mask that broadcasts to `B N T S`."""
    q, k, v = (x.reshape(*x.shape[:2], HEADS, SIZE) for x in (q, k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(SIZE)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(*q.shape[:2], WIDTH)


def rotate(x: Any) -> Any:
    """Rotate the halves of each head by its position; `B T D`."""
    rates = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    angles = np.arange(x.shape[1])[:, None, None] * rates
    a, b = jnp.split(x.reshape(*x.shape[:2], HEADS, SIZE), 2, axis=-1)
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return jnp.concatenate(turned, axis=-1).reshape(x.shape)


def causal(n: int) -> Any:
    """Return a causal mask `T S`."""
    return jnp.tril(jnp.ones((n, n), bool))


def average(x: Any, valid: Any) -> Any:
    """Average over the valid positions."""
    return (x * valid[..., None]).sum(1) / valid.sum(1, keepdims=True)


class LinenAttention(linen.Module):
    """Attention over `memory`."""

    rotary: bool = False

    @linen.compact
    def __call__(self, x, memory, mask):
        q, k, v = (linen.Dense(WIDTH, name=name)(of) for name, of in (("query", x), ("key", memory), ("value", memory)))
        q, k = (rotate(q), rotate(k)) if self.rotary else (q, k)
        return linen.Dense(WIDTH, name="out")(attend(q, k, v, mask))


class LinenFeedForward(linen.Module):
    """Two layers with a GELU."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(WIDTH, name="down")(linen.gelu(linen.Dense(HIDDEN, name="up")(x)))


class LinenBlock(linen.Module):
    """Pre-norm block, over a memory too if there is one."""

    @linen.compact
    def __call__(self, x, mask, memory=None, seen=None):
        h = linen.LayerNorm(epsilon=1e-5, name="norm1")(x)
        x = x + LinenAttention(name="attention")(h, h, mask)
        if memory is not None:
            x = x + LinenAttention(name="cross")(linen.LayerNorm(epsilon=1e-5, name="norm3")(x), memory, seen)
        return x + LinenFeedForward(name="mlp")(linen.LayerNorm(epsilon=1e-5, name="norm2")(x))


class LinenGPT(linen.Module):
    """Decoder with learned positions and a tied read-out."""

    @linen.compact
    def __call__(self, ids):
        embed = linen.Embed(VOCAB, WIDTH, name="embed")
        x = embed(ids) + linen.Embed(LENGTH + 2, WIDTH, name="positions")(jnp.arange(ids.shape[1]))
        for i in range(2):
            x = LinenBlock(name=f"block{i}")(x, causal(ids.shape[1]))
        return embed.attend(linen.LayerNorm(epsilon=1e-5, name="norm")(x))


class LinenEncoder(linen.Module):
    """Post-norm encoder under a padding mask, averaged over tokens."""

    @linen.compact
    def __call__(self, ids, valid):
        x = linen.Embed(VOCAB, WIDTH, name="embed")(ids) * np.sqrt(WIDTH)
        x = linen.LayerNorm(epsilon=1e-6, name="norm1")(x + LinenAttention(name="attention")(x, x, valid[:, None, None]))
        x = linen.LayerNorm(epsilon=1e-6, name="norm2")(x + LinenFeedForward(name="mlp")(x))
        return linen.Dense(CLASSES, name="head")(jnp.tanh(linen.Dense(HIDDEN, name="pool")(average(x, valid))))


class LinenPair(linen.Module):
    """Encoder and decoder over one embedding."""

    @linen.compact
    def __call__(self, source, target, valid):
        embed = linen.Embed(VOCAB, WIDTH, name="embed")
        memory = LinenBlock(name="encoder")(embed(source), valid[:, None, None])
        memory = linen.RMSNorm(epsilon=1e-6, name="between")(memory)
        x = LinenBlock(name="decoder")(embed(target), causal(target.shape[1]), memory, valid[:, None, None])
        return linen.Dense(VOCAB, use_bias=False, name="head")(x)


class LinenViT(linen.Module):
    """Image model: patches by a convolution, batch norm with running statistics, a class token."""

    @linen.compact
    def __call__(self, images):
        x = linen.Conv(CHANNELS, (3, 3), name="stem")(images)
        x = linen.relu(linen.BatchNorm(use_running_average=True, epsilon=1e-5, name="batch")(x))
        x = linen.Conv(WIDTH, (PATCH, PATCH), (PATCH, PATCH), padding="VALID", name="patches")(x)
        x = x.reshape(len(x), -1, WIDTH)
        token = self.param("token", linen.initializers.normal(), (1, 1, WIDTH))
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, WIDTH)), x], axis=1)
        x = LinenBlock(name="block")(x, jnp.ones((1, 1), bool))
        return linen.Dense(CLASSES, name="head")(x[:, 0])


class LinenMixture(linen.Module):
    """Rotary decoder whose feed-forward is the two best of several gated experts."""

    @linen.compact
    def __call__(self, ids):
        x = linen.Embed(VOCAB, WIDTH, name="embed")(ids)
        h = linen.RMSNorm(epsilon=1e-5, name="norm1")(x)
        x = x + LinenAttention(rotary=True, name="attention")(h, h, causal(ids.shape[1]))
        h = linen.RMSNorm(epsilon=1e-5, name="norm2")(x)
        odds = jax.nn.softmax(linen.Dense(EXPERTS, use_bias=False, name="router")(h))
        best, which = jax.lax.top_k(odds, 2)
        share = jnp.sum(jax.nn.one_hot(which, EXPERTS) * (best / best.sum(-1, keepdims=True))[..., None], axis=-2)
        for i in range(EXPERTS):
            inner = linen.silu(linen.Dense(HIDDEN, name=f"gate{i}")(h)) * linen.Dense(HIDDEN, name=f"up{i}")(h)
            x = x + share[..., i : i + 1] * linen.Dense(WIDTH, name=f"down{i}")(inner)
        return linen.Dense(VOCAB, name="head")(x)


def linear(n: int, m: int, *, bias: bool = True) -> nnx.Linear:
    """Make a linear layer."""
    return nnx.Linear(n, m, use_bias=bias, rngs=nnx.Rngs(0))


def layer_norm(epsilon: float = 1e-5) -> nnx.LayerNorm:
    """Make a layer norm."""
    return nnx.LayerNorm(WIDTH, epsilon=epsilon, rngs=nnx.Rngs(0))


def rms_norm(epsilon: float = 1e-5) -> nnx.RMSNorm:
    """Make an RMS norm."""
    return nnx.RMSNorm(WIDTH, epsilon=epsilon, rngs=nnx.Rngs(0))


class Attention(nnx.Module):
    """Attention over `memory`."""

    def __init__(self, *, rotary: bool = False):
        self.query, self.key = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.value, self.out = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.rotary = rotary

    def __call__(self, x, memory, mask):
        q, k, v = self.query(x), self.key(memory), self.value(memory)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        return self.out(attend(q, k, v, mask))


class FeedForward(nnx.Module):
    """Two layers with a GELU."""

    def __init__(self):
        self.up, self.down = linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def __call__(self, x):
        return self.down(nnx.gelu(self.up(x)))


class Block(nnx.Module):
    """Pre-norm block, over a memory too if there is one."""

    def __init__(self, *, cross: bool = False):
        self.norm1, self.norm2 = layer_norm(), layer_norm()
        self.attention, self.mlp = Attention(), FeedForward()
        if cross:
            self.norm3, self.cross = layer_norm(), Attention()

    def __call__(self, x, mask, memory=None, seen=None):
        h = self.norm1(x)
        x = x + self.attention(h, h, mask)
        if memory is not None:
            x = x + self.cross(self.norm3(x), memory, seen)
        return x + self.mlp(self.norm2(x))


class GPT(nnx.Module):
    """Decoder with learned positions and a tied read-out."""

    def __init__(self):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0))
        self.positions = nnx.Embed(LENGTH + 2, WIDTH, rngs=nnx.Rngs(0))
        self.block0, self.block1 = Block(), Block()
        self.norm = layer_norm()

    def __call__(self, ids):
        x = self.embed(ids) + self.positions(jnp.arange(ids.shape[1]))
        for block in (self.block0, self.block1):
            x = block(x, causal(ids.shape[1]))
        return self.embed.attend(self.norm(x))


class Encoder(nnx.Module):
    """Post-norm encoder under a padding mask, averaged over tokens."""

    def __init__(self):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0))
        self.attention, self.mlp = Attention(), FeedForward()
        self.norm1, self.norm2 = layer_norm(1e-6), layer_norm(1e-6)
        self.pool, self.head = linear(WIDTH, HIDDEN), linear(HIDDEN, CLASSES)

    def __call__(self, ids, valid):
        x = self.embed(ids) * np.sqrt(WIDTH)
        x = self.norm1(x + self.attention(x, x, valid[:, None, None]))
        x = self.norm2(x + self.mlp(x))
        return self.head(jnp.tanh(self.pool(average(x, valid))))


class Pair(nnx.Module):
    """Encoder and decoder over one embedding."""

    def __init__(self):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0))
        self.encoder, self.decoder = Block(), Block(cross=True)
        self.between = rms_norm(1e-6)
        self.head = linear(WIDTH, VOCAB, bias=False)

    def __call__(self, source, target, valid):
        memory = self.between(self.encoder(self.embed(source), valid[:, None, None]))
        x = self.decoder(self.embed(target), causal(target.shape[1]), memory, valid[:, None, None])
        return self.head(x)


class ViT(nnx.Module):
    """Image model: patches by a convolution, batch norm with running statistics, a class token."""

    def __init__(self):
        self.stem = nnx.Conv(3, CHANNELS, (3, 3), rngs=nnx.Rngs(0))
        self.batch = nnx.BatchNorm(CHANNELS, use_running_average=True, epsilon=1e-5, rngs=nnx.Rngs(0))
        patch = (PATCH, PATCH)
        self.patches = nnx.Conv(CHANNELS, WIDTH, patch, strides=patch, padding="VALID", rngs=nnx.Rngs(0))
        self.token = nnx.Param(jnp.zeros((1, 1, WIDTH)))
        self.block, self.head = Block(), linear(WIDTH, CLASSES)

    def __call__(self, images):
        x = self.patches(nnx.relu(self.batch(self.stem(images))))
        x = x.reshape(len(x), -1, WIDTH)
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, WIDTH)), x], axis=1)
        return self.head(self.block(x, jnp.ones((1, 1), bool))[:, 0])


class Mixture(nnx.Module):
    """Rotary decoder whose feed-forward is the two best of several gated experts."""

    def __init__(self):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0))
        self.norm1, self.norm2 = rms_norm(), rms_norm()
        self.attention = Attention(rotary=True)
        self.router = linear(WIDTH, EXPERTS, bias=False)
        for i in range(EXPERTS):
            setattr(self, f"gate{i}", linear(WIDTH, HIDDEN))
            setattr(self, f"up{i}", linear(WIDTH, HIDDEN))
            setattr(self, f"down{i}", linear(HIDDEN, WIDTH))
        self.head = linear(WIDTH, VOCAB)

    def __call__(self, ids):
        x = self.embed(ids)
        h = self.norm1(x)
        x = x + self.attention(h, h, causal(ids.shape[1]))
        h = self.norm2(x)
        best, which = jax.lax.top_k(jax.nn.softmax(self.router(h)), 2)
        share = jnp.sum(jax.nn.one_hot(which, EXPERTS) * (best / best.sum(-1, keepdims=True))[..., None], axis=-2)
        for i in range(EXPERTS):
            gate, up, down = (getattr(self, f"{name}{i}") for name in ("gate", "up", "down"))
            x = x + share[..., i : i + 1] * down(nnx.silu(gate(h)) * up(h))
        return self.head(x)
