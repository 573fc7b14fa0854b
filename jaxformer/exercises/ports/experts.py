"""The port: NNX modules of the same names."""

import jax
import jax.numpy as jnp
from flax import nnx

D, WIDE, EXPERTS, CHOSEN = 8, 10, 4, 2


class Expert(nnx.Module):
    def __init__(self, rngs):
        self.gate, self.up = nnx.Linear(D, WIDE, rngs=rngs), nnx.Linear(D, WIDE, rngs=rngs)
        self.down = nnx.Linear(WIDE, D, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Mixture(nnx.Module):
    def __init__(self, rngs):
        self.router = nnx.Linear(D, EXPERTS, use_bias=False, rngs=rngs)
        self.experts = nnx.List(Expert(rngs) for _ in range(EXPERTS))
        self.shared, self.shared_gate = Expert(rngs), nnx.Linear(D, 1, use_bias=False, rngs=rngs)

    def __call__(self, x):
        weights, chosen = jax.lax.top_k(jax.nn.softmax(self.router(x)), CHOSEN)
        weights = weights / weights.sum(-1, keepdims=True)
        scale = (jax.nn.one_hot(chosen, EXPERTS, dtype=x.dtype) * weights[..., None]).sum(-2)
        outputs = jnp.stack([expert(x) for expert in self.experts], -2)
        return (scale[..., None] * outputs).sum(-2) + jax.nn.sigmoid(self.shared_gate(x)) * self.shared(x)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(D, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.mixture, self.out = Mixture(rngs), nnx.Linear(D, 5, rngs=rngs)

    def __call__(self, x):
        return self.out(x + self.mixture(self.norm(x)))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names."""
    model = Model(nnx.Rngs(0))
    names = {"kernel": "weight", "scale": "weight"}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        *owners, leaf = map(str, path)
        array = weights[".".join([*owners, names.get(leaf, leaf)])]
        variable[...] = array.T if leaf == "kernel" else array
    return model


def call(model, x):
    """The outputs."""
    return model(x)
