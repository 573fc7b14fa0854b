"""The port: a function of torch's parameters by name. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

D, WIDTH, CODES = 7, 5, 6


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])


def codebook(p, x):
    codes = p["codebook.codes.weight"]
    nearest = ((x[..., None, :] - codes) ** 2).sum(-1).argmin(-1)
    found = jf.tap("codebook.codes", codes[nearest])
    return jf.tap("codebook", x + jax.lax.stop_gradient(found - x))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, x):
    """The reconstruction."""
    return linear(p, "up", jnp.tanh(codebook(p, norm(p, "norm", linear(p, "down", x)))))
