"""The port: a function of torch's parameters by name. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

CHANNELS, WIDTH, FRAMES, LENGTH = 4, 6, 4, 7
LAYOUT = ("NCH", "OIH", "NCH")


def up(p, x):
    kernel = p["up.conv.weight"].swapaxes(0, 1)[..., ::-1]
    x = jax.lax.conv_general_dilated(x, kernel, (1,), [(2, 2)], lhs_dilation=(2,), dimension_numbers=LAYOUT)
    x, gate = jnp.split(jf.tap("up.conv", x + p["up.conv.bias"][:, None]), 2, axis=1)
    return jf.tap("up", group_norm(p, x * jax.nn.sigmoid(gate)))


def group_norm(p, x):
    parts = x.reshape(len(x), 3, -1, x.shape[-1])
    mean, var = parts.mean((2, 3), keepdims=True), parts.var((2, 3), keepdims=True)
    x = ((parts - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
    return jf.tap("up.norm", x * p["up.norm.weight"][:, None] + p["up.norm.bias"][:, None])


def pool(x):
    length = x.shape[-1]
    bounds = [(i * length // FRAMES, -(-(i + 1) * length // FRAMES)) for i in range(FRAMES)]
    return jnp.stack([x[..., first:last].mean(-1) for first, last in bounds], -1)


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: the dict itself."""
    return weights


def call(p, x):
    """The frames."""
    x = up(p, x)
    mixed = jax.lax.conv_general_dilated(x, p["mix.weight"], (1,), [(1, 1)], dimension_numbers=LAYOUT)
    x = x + jax.nn.leaky_relu(jf.tap("mix", mixed + p["mix.bias"][:, None]), 0.2)
    return jf.tap("out", pool(x).swapaxes(1, 2) @ p["out.weight"].T + p["out.bias"])
