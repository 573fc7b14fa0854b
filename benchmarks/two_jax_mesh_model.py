"""A model as a user writes it for one device, and by hand for a mesh of data=2 and part=4, along which tokens lie."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

VOCAB, LENGTH, WIDTH, HIDDEN, ROWS = 13, 8, 8, 16, 4
PARTS = 4
SHAPES = dict.fromkeys(("query", "key", "value", "mix", "head"), (WIDTH, WIDTH)) | {
    "embed": (VOCAB, WIDTH),
    "positions": (LENGTH, WIDTH),
    "up": (WIDTH, HIDDEN),
    "gain": (HIDDEN,),
    "down": (HIDDEN, WIDTH),
    "pool": (WIDTH,),
}


def one_device(p: Any, ids: Any) -> Any:
    """Compute the output, the loss, and the gradient of the head, on one device."""
    n = ids.shape[1]
    x = p["embed"][ids] + p["positions"][:n]
    scores = (x @ p["query"]) @ (x @ p["key"]).swapaxes(1, 2) / np.sqrt(WIDTH)
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -1e9)
    x = x + jax.nn.softmax(scores, axis=-1) @ (x @ p["value"])
    before = jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], axis=1)
    x = x + before @ p["mix"]
    h = x @ p["up"]
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5) * p["gain"]
    x = x + jax.nn.relu(h) @ p["down"]
    weights = jax.nn.softmax(x @ p["pool"], axis=1)
    pooled = (weights[..., None] * x).sum(1) + x.mean(1)
    loss = lambda head: ((pooled @ head) ** 2).mean()  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(p["head"])
    return {"states": x, "logits": pooled @ p["head"], "loss": value, "gradient": gradient}


def tokens(p: Any, ids: Any) -> Any:
    """Compute the states of a device's own tokens; attention reads the keys and values of all."""
    n = ids.shape[1]
    places = jax.lax.axis_index("part") * n + jnp.arange(n)
    x = p["embed"][ids] + p["positions"][places]
    keys = jax.lax.all_gather(x @ p["key"], "part", axis=1, tiled=True)
    values = jax.lax.all_gather(x @ p["value"], "part", axis=1, tiled=True)
    scores = (x @ p["query"]) @ keys.swapaxes(1, 2) / np.sqrt(WIDTH)
    rows = jax.lax.axis_index("part") * n + jnp.arange(n)
    scores = jnp.where(rows[:, None] >= jnp.arange(n * jax.lax.axis_size("part")), scores, -1e9)
    x = x + jax.nn.softmax(scores, axis=-1) @ values
    last = jax.lax.ppermute(x[:, -1:], "part", [(i, i + 1) for i in range(jax.lax.axis_size("part") - 1)])
    return x + jnp.concatenate([last, x[:, :-1]], axis=1) @ p["mix"]


def units(up: Any, gain: Any, down: Any, x: Any) -> Any:
    """Compute the feed-forward layer by a device's own units; each device goes on with its own tokens."""
    h = x @ up
    mean = jax.lax.pmean(h.mean(-1, keepdims=True), "part")
    var = jax.lax.pmean(((h - mean) ** 2).mean(-1, keepdims=True), "part")
    h = (h - mean) / jnp.sqrt(var + 1e-5) * gain
    return jax.lax.psum_scatter(jax.nn.relu(h) @ down, "part", scatter_dimension=1, tiled=True)


def ends(p: Any, x: Any) -> Any:
    """Pool over all tokens; compute the loss over all rows, and the gradient."""
    scores = x @ p["pool"]
    most = jax.lax.pmax(jax.lax.stop_gradient(scores).max(1, keepdims=True), "part")
    powers = jnp.exp(scores - most)
    total = jax.lax.psum(powers.sum(1, keepdims=True), "part")
    pooled = jax.lax.psum((powers[..., None] * x).sum(1), "part") / total
    pooled = pooled + jax.lax.pmean(x.mean(1), "part")
    value, gradient = jax.value_and_grad(lambda head: ((pooled @ head) ** 2).mean())(p["head"])
    return pooled @ p["head"], jax.lax.pmean(value, "data"), jax.lax.pmean(gradient, "data")


def on_mesh(p: Any, ids: Any) -> Any:
    """Compute the same on a mesh."""
    mesh = jax.make_mesh((2, PARTS), ("data", "part"), axis_types=(AxisType.Auto,) * 2)
    cut = {"mesh": mesh, "check_vma": False}
    own = P("data", "part")
    x = jax.shard_map(tokens, in_specs=(P(), own), out_specs=own, **cut)(p, ids)
    parts = P(None, "part"), P("part"), P("part"), P("data")
    x = x + jax.shard_map(units, in_specs=parts, out_specs=own, **cut)(p["up"], p["gain"], p["down"], x)
    logits, loss, gradient = jax.shard_map(ends, in_specs=(P(), own), out_specs=(P("data"), P(), P()), **cut)(p, x)
    return {"states": x, "logits": logits, "loss": loss, "gradient": gradient}
