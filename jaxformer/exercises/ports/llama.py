"""The port: functions of stacked parameters, and a scan over the layers. `jf.tap` names what a module gives."""

import jax
import jax.numpy as jnp

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, KEYS, WIDTH, WIDE, LAYERS = 17, 9, 12, 4, 2, 8, 20, 3
ROTATED, BASE = WIDTH // 2, 10000.0


def linear(p, name, x):
    return jf.tap(f"layers.{name}", x @ p[f"{name}.weight"].swapaxes(-1, -2))


def norm(weight, x):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def rotate(x):
    rates = BASE ** (-jnp.arange(0, ROTATED, 2) / ROTATED)
    angles = jnp.arange(x.shape[-2])[:, None] * jnp.concatenate([rates, rates])
    x, rest = x[..., :ROTATED], x[..., ROTATED:]
    a, b = jnp.split(x, 2, -1)
    turned = x * jnp.cos(angles) + jnp.concatenate([-b, a], -1) * jnp.sin(angles)
    return jnp.concatenate([turned, rest], -1)


def attention(p, x):
    names = (f"attention.{each}_proj" for each in "qkv")
    q, k, v = (linear(p, name, x).reshape(*x.shape[:2], -1, WIDTH).swapaxes(1, 2) for name in names)
    k, v = (jnp.repeat(each, HEADS // KEYS, axis=1) for each in (rotate(k), v))
    seen = jnp.tri(x.shape[1], dtype=bool)
    scores = jnp.where(seen, rotate(q) @ k.mT * WIDTH**-0.5, -jnp.inf)
    gathered = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(*x.shape[:2], -1)
    return jf.tap("layers.attention", linear(p, "attention.o_proj", gathered))


def mlp(p, x):
    x = jax.nn.silu(linear(p, "mlp.gate_proj", x)) * linear(p, "mlp.up_proj", x)
    return jf.tap("layers.mlp", linear(p, "mlp.down_proj", x))


def layer(x, p):
    x = x + attention(p, jf.tap("layers.norm1", norm(p["norm1.weight"], x)))
    return x + mlp(p, jf.tap("layers.norm2", norm(p["norm2.weight"], x))), None


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names: those of the layers stacked."""
    names = [name.removeprefix("layers.0.") for name in weights if name.startswith("layers.0.")]
    layers = {name: jnp.stack([weights[f"layers.{i}.{name}"] for i in range(LAYERS)]) for name in names}
    return {"layers": layers} | {name: weights[name] for name in ("embed.weight", "norm.weight", "head.weight")}


def call(p, ids):
    """The logits."""
    x = jf.tap("embed", p["embed.weight"][ids])
    x, _ = jax.lax.scan(layer, x, p["layers"])
    return jf.tap("head", jf.tap("norm", norm(p["norm.weight"], x)) @ p["head.weight"].T)
