"""The port: a function of torch's parameters by name. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, WIDTH, WIDE, LAYERS = 17, 12, 12, 2, 8, 20, 2
WINDOW, CAP, FINAL_CAP, SCALE = 4, 3.0, 6.0, 5.0**-0.5


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T)


def norm(p, name, x):
    x = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return jf.tap(name, x * (1 + p[f"{name}.weight"]))


def mask(length, window):
    distance = jnp.arange(length)[:, None] - jnp.arange(length)
    seen = distance >= 0
    return seen & (distance < WINDOW) if window else seen


def attention(p, name, x, seen):
    names = (f"{name}.{each}" for each in ("query", "key", "value"))
    q, k, v = (linear(p, each, x).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2) for each in names)
    scores = CAP * jnp.tanh(q @ k.mT * SCALE / CAP)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    return jf.tap(name, linear(p, f"{name}.out", (weights @ v).swapaxes(1, 2).reshape(*x.shape[:2], -1)))


def mlp(p, name, x):
    x = jax.nn.gelu(linear(p, f"{name}.gate", x), approximate=True) * linear(p, f"{name}.up", x)
    return jf.tap(name, linear(p, f"{name}.down", x))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, ids):
    """The logits."""
    x = jf.tap("embed", p["embed.weight"][ids]) * jnp.asarray(D**0.5, jnp.bfloat16)
    for i in range(LAYERS):
        seen, name = mask(ids.shape[1], window=i % 2 == 0), f"layers.{i}"
        x = x + attention(p, f"{name}.attention", norm(p, f"{name}.norm1", x), seen)
        x = jf.tap(name, x + mlp(p, f"{name}.mlp", norm(p, f"{name}.norm2", x)))
    return FINAL_CAP * jnp.tanh(norm(p, "norm", x) @ p["embed.weight"].T / FINAL_CAP)
