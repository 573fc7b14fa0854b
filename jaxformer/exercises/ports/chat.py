"""The port: functions of torch's parameters by name, and a cache of keys and values. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

VOCAB, ROOM, D, HEADS, STEPS = 13, 9, 8, 2, 4


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])


def attention(p, x, cache):
    keys, values, start = cache

    def heads(name):
        return linear(p, f"attention.{name}", x).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

    keys = jax.lax.dynamic_update_slice(keys, heads("key").astype(keys.dtype), (0, 0, start, 0))
    values = jax.lax.dynamic_update_slice(values, heads("value").astype(values.dtype), (0, 0, start, 0))
    seen = jnp.arange(ROOM) <= start + jnp.arange(x.shape[1])[:, None]
    scores = jnp.where(seen, heads("query") @ keys.mT / jnp.sqrt(D // HEADS), -jnp.inf)
    gathered = (jax.nn.softmax(scores) @ values).swapaxes(1, 2).reshape(x.shape)
    return jf.tap("attention", linear(p, "attention.out", gathered)), (keys, values, start + x.shape[1])


def read(p, ids, cache):
    words = jf.tap("words", p["words.weight"][ids])
    x = words + jf.tap("places", p["places.weight"][cache[2] + jnp.arange(ids.shape[1])])
    y, cache = attention(p, norm(p, "norm", x), cache)
    return linear(p, "head", norm(p, "last", x + y)), cache


def empty(p, batch):
    zeros = jnp.zeros((batch, HEADS, ROOM, D // HEADS), p["head.bias"].dtype)
    return zeros, zeros, 0


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, ids):
    """The logits of a whole text."""
    return read(p, ids, empty(p, len(ids)))[0]


def steps(p, prompt):
    """Yield the logits of the prompt, then those of each id that is sent."""
    logits, cache = read(p, prompt, empty(p, len(prompt)))
    ids = yield logits
    for _ in range(STEPS):
        logits, cache = read(p, ids[:, None], cache)
        ids = yield logits[:, 0]
