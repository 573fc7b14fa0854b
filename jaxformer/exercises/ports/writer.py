"""The port: a function of torch's parameters by name. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, LAYERS = 17, 9, 12, 3, 2


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])


def attention(p, name, x):
    packed = linear(p, f"{name}.qkv", x)
    q, k, v = (part.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2) for part in jnp.split(packed, 3, -1))
    seen = jnp.tri(x.shape[1], dtype=bool)
    scores = jnp.where(seen, q @ k.mT / jnp.sqrt(D // HEADS), -jnp.inf)
    gathered = jax.nn.softmax(scores) @ v
    return jf.tap(name, linear(p, f"{name}.out", gathered.swapaxes(1, 2).reshape(x.shape)))


def mlp(p, name, x):
    x = jax.nn.gelu(linear(p, f"{name}.up", x), approximate=True)
    return jf.tap(name, linear(p, f"{name}.down", x))


def block(p, name, x):
    x = x + attention(p, f"{name}.attention", norm(p, f"{name}.norm1", x))
    return x + mlp(p, f"{name}.mlp", norm(p, f"{name}.norm2", x))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, ids):
    """The logits."""
    words = jf.tap("words", p["words.weight"][ids])
    x = words + jf.tap("places", p["places.weight"][jnp.arange(ids.shape[1])])
    for i in range(LAYERS):
        x = jf.tap(f"blocks.{i}", block(p, f"blocks.{i}", x))
    return norm(p, "norm", x) @ p["words.weight"].T
