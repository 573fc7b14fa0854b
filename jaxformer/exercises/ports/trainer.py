"""The port: functions of torch's parameters by name, and an optimizer of optax. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp
import optax

import jaxformer as jf

VOCAB, D, RATE, DECAY, LIMIT, WARMUP = 11, 8, 0.02, 0.1, 0.3, 3


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, ids):
    """The logits."""
    x = jf.tap("embed", p["embed.weight"][ids])
    return linear(p, "head", norm(p, "norm", x + jnp.tanh(linear(p, "mix", x))))


def loss(p, ids):
    """The mean cross-entropy of the next ids."""
    log = jax.nn.log_softmax(call(p, ids[:, :-1]))
    return -jnp.take_along_axis(log, ids[:, 1:, None], -1).mean()


def clip(updates, state, params=None):
    factor = jnp.minimum(1.0, LIMIT / (optax.tree.norm(updates) + 1e-6))
    return jax.tree.map(lambda update: update * factor, updates), state


def optimizer():
    """Clipping, AdamW and the warmup."""
    rate = optax.linear_schedule(RATE / WARMUP, RATE, WARMUP - 1)
    return optax.chain(
        optax.GradientTransformation(lambda params: optax.EmptyState(), clip),
        optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-9, weight_decay=DECAY),
    )
