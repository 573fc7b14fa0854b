"""The port: a function of torch's parameters by name. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

D, TIMES, LENGTH = 8, 3, 6


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])


def transition(p, x):
    y = jax.nn.relu(linear(p, "transition.up", norm(p, "transition.norm", x)))
    return jf.tap("transition", x + linear(p, "transition.down", y))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, x):
    """The outputs."""
    given = linear(p, "embed", x)
    state = jnp.zeros_like(given)
    for _ in range(TIMES):
        state = transition(p, given + norm(p, "recycled", state))
    return linear(p, "out", state)
