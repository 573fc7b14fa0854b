"""The port: NNX modules of the same names."""

import jax
import jax.numpy as jnp
from flax import nnx

VOCAB, LENGTH, D, HEADS, WIDE, LABELS, PAD = 19, 10, 12, 3, 20, 4, 1


def norm(rngs):
    return nnx.LayerNorm(D, epsilon=1e-12, use_fast_variance=False, rngs=rngs)


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.query, self.key, self.value, self.out = (nnx.Linear(D, D, rngs=rngs) for _ in range(4))

    def __call__(self, x, valid):
        q, k, v = (f(x).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.mT / jnp.sqrt(D // HEADS)
        weights = jax.nn.softmax(jnp.where(valid[:, None, None], scores, -1e9))
        return self.out((weights @ v).swapaxes(1, 2).reshape(x.shape))


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.attention, self.norm1 = Attention(rngs), norm(rngs)
        self.up, self.down, self.norm2 = nnx.Linear(D, WIDE, rngs=rngs), nnx.Linear(WIDE, D, rngs=rngs), norm(rngs)

    def __call__(self, x, valid):
        x = self.norm1(x + self.attention(x, valid))
        return self.norm2(x + self.down(jax.nn.gelu(self.up(x), approximate=False)))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.words, self.places = nnx.Embed(VOCAB, D, rngs=rngs), nnx.Embed(LENGTH + PAD + 1, D, rngs=rngs)
        self.norm = norm(rngs)
        self.layers = nnx.List(Layer(rngs) for _ in range(2))
        self.classify = nnx.Linear(D, LABELS, rngs=rngs)

    def __call__(self, ids):
        valid = ids != PAD
        places = valid.cumsum(1) * valid + PAD
        x = self.norm(self.words(ids) + self.places(places))
        for layer in self.layers:
            x = layer(x, valid)
        total = (x * valid[..., None]).sum(1)
        return self.classify(total / valid.sum(1, keepdims=True))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names."""
    model = Model(nnx.Rngs(0))
    names = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        *owners, leaf = map(str, path)
        array = weights[".".join([*owners, names.get(leaf, leaf)])]
        variable[...] = array.T if leaf == "kernel" else array
    return model


def call(model, ids):
    """The logits."""
    return model(ids)
