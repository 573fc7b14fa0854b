"""The port: a function of torch's parameters by name. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

VOCAB, D, HEADS, PAD = 17, 8, 2, 0


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])


def embed(p, ids):
    rates = 10000.0 ** (-jnp.arange(0, D, 2) / D)
    angles = jnp.arange(ids.shape[1])[:, None] * rates
    sinusoids = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(-1, D)
    return jf.tap("embed", p["embed.weight"][ids]) * D**0.5 + sinusoids


def attention(p, name, x, memory, seen):
    def heads(each, states):
        return linear(p, f"{name}.{each}", states).reshape(*states.shape[:2], HEADS, -1).swapaxes(1, 2)

    q, k, v = heads("query", x), heads("key", memory), heads("value", memory)
    scores = jnp.where(seen, q @ k.mT / jnp.sqrt(D // HEADS), -1e9)
    gathered = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape)
    return jf.tap(name, linear(p, f"{name}.out", gathered))


def encoder(p, x, seen):
    y = norm(p, "encoder.norm", x)
    return jf.tap("encoder", x + attention(p, "encoder.attention", y, y, seen))


def decoder(p, x, memory, seen, source):
    y = norm(p, "decoder.norm1", x)
    x = x + attention(p, "decoder.attention", y, y, seen)
    return jf.tap("decoder", x + attention(p, "decoder.cross", norm(p, "decoder.norm2", x), memory, source))


def loss_of(logits, wanted):
    log = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(log, wanted[..., None], -1)[..., 0]
    valid = wanted != PAD
    return (losses * valid).sum() / valid.sum()


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, source, target):
    """The loss."""
    given, wanted = target[:, :-1], target[:, 1:]
    seen = (source != PAD)[:, None, None]
    memory = encoder(p, embed(p, source), seen)
    causal = jnp.tri(given.shape[1], dtype=bool)
    x = decoder(p, embed(p, given), memory, causal, seen)
    return loss_of(linear(p, "head", norm(p, "norm", x)), wanted)
