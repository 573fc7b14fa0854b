"""A GPT in one file that names every axis. `python docs/guide/gpt.py [TEXT]` trains it on characters, and writes.

    B  sequences of a batch      D  width of the model      V  characters that have an id
    T  queries: tokens that read N  heads                   F  inner width of the feed-forward layer
    S  keys: tokens that are read (the same tokens)         H  width of a head, D / N

A letter in an einsum is an axis here: "BTD,DNH->BTNH" sums over D, which is missing on the right.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Sizes(NamedTuple):
    """Sizes of the model: the number of its layers, and the length of an axis by its letter."""

    V: int
    T: int = 32
    D: int = 48
    N: int = 4
    F: int = 192
    layers: int = 3


def init(key: jax.Array, sizes: Sizes) -> dict[str, Any]:
    """Draw the parameters, N(0, 0.02) as GPT-2 has them; gains of norms are 1, biases 0."""
    V, T, D, N, F, layers = sizes
    keys, H = iter(jax.random.split(key, 3 + 6 * layers)), D // N

    def normal(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    def norm() -> dict[str, jax.Array]:
        return {"gain": jnp.ones(D), "bias": jnp.zeros(D)}

    def block() -> dict[str, Any]:
        heads = {name: {"kernel": normal(D, N, H), "bias": jnp.zeros((N, H))} for name in ("query", "key", "value")}
        return {
            "attention_norm": norm(),
            "attention": heads | {"out": {"kernel": normal(N, H, D), "bias": jnp.zeros(D)}},
            "feed_forward_norm": norm(),
            "up": {"kernel": normal(D, F), "bias": jnp.zeros(F)},
            "down": {"kernel": normal(F, D), "bias": jnp.zeros(D)},
        }

    blocks = [block() for _ in range(layers)]
    return {"token": normal(V, D), "position": normal(T, D), "blocks": blocks, "norm": norm(), "head": normal(D, V)}


def layer_norm(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """BTD -> BTD: each token by itself to mean 0 and variance 1 over D, then a gain and a bias for each unit."""
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)  # divided by D, not by D - 1
    return centered / jnp.sqrt(variance + 1e-5) * p["gain"] + p["bias"]


def attention(p: dict[str, Any], x: jax.Array) -> jax.Array:
    """BTD -> BTD: each token reads those before it and itself."""
    q, k, v = (jnp.einsum("BTD,DNH->BTNH", x, p[name]["kernel"]) + p[name]["bias"] for name in ("query", "key", "value"))
    scores = jnp.einsum("BTNH,BSNH->BNTS", q, k) / np.sqrt(q.shape[-1])  # how well query T fits key S, in each head
    T = x.shape[1]
    causal = jnp.arange(T)[None, :] <= jnp.arange(T)[:, None]  # T S: True where key S is not after query T
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)  # sums to 1 over S
    read = jnp.einsum("BNTS,BSNH->BTNH", weights, v)
    return jnp.einsum("BTNH,NHD->BTD", read, p["out"]["kernel"]) + p["out"]["bias"]


def feed_forward(p: dict[str, Any], x: jax.Array) -> jax.Array:
    """BTD -> BTD, through BTF: each token by itself."""
    inner = jnp.einsum("BTD,DF->BTF", x, p["up"]["kernel"]) + p["up"]["bias"]
    inner = jax.nn.gelu(inner, approximate=False)  # by erf, as torch's default; JAX's default is the tanh form
    return jnp.einsum("BTF,FD->BTD", inner, p["down"]["kernel"]) + p["down"]["bias"]


def gpt(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """Tokens BT -> logits BTV: at each place, how likely each character is to come next."""
    x = params["token"][tokens] + params["position"][: tokens.shape[1]]  # BTD + TD
    for p in params["blocks"]:
        x = x + attention(p["attention"], layer_norm(p["attention_norm"], x))
        x = x + feed_forward(p, layer_norm(p["feed_forward_norm"], x))
    return jnp.einsum("BTD,DV->BTV", layer_norm(params["norm"], x), params["head"])


def loss(params: dict[str, Any], window: jax.Array) -> jax.Array:
    """Mean of -log p of the right next character, in nats; the window has one token more than the model reads."""
    logits, wanted = gpt(params, window[:, :-1]), window[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits, wanted).mean()


def train(text: np.ndarray, sizes: Sizes, steps: int, batch: int = 16, seed: int = 0) -> dict[str, Any]:
    """Train on random windows of the text, and print the loss."""
    params, draw, optimizer = init(jax.random.key(seed), sizes), np.random.default_rng(seed), optax.adam(2e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params: dict[str, Any], state: Any, window: jax.Array) -> tuple[dict[str, Any], Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, window)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    for number in range(1, steps + 1):
        starts = draw.integers(0, len(text) - sizes.T, batch)
        params, state, value = step(params, state, np.stack([text[start : start + sizes.T + 1] for start in starts]))
        if number % 100 == 0:
            print(f"step {number:4}  loss {value:.3f}")
    return params


def write(params: dict[str, Any], ids: list[int], n_tokens: int, context: int, seed: int = 0) -> list[int]:
    """Draw one character after another, each from what the model says comes next after the last `context` ones."""
    predict, draw = jax.jit(gpt), np.random.default_rng(seed)
    for _ in range(n_tokens):
        read = ids[-context:]
        padded = np.array([read + [0] * (context - len(read))])  # one shape: later tokens do not change earlier logits
        p = np.exp(np.asarray(jax.nn.log_softmax(predict(params, padded)[0, len(read) - 1]), np.float64))
        ids = [*ids, int(draw.choice(len(p), p=p / p.sum()))]
    return ids


if __name__ == "__main__":
    text = Path(sys.argv[1] if sys.argv[1:] else __file__).read_text("utf-8")  # without a text, it reads itself
    letters = sorted(set(text))
    ids = np.array([letters.index(letter) for letter in text])
    sizes = Sizes(V=len(letters))
    params = train(ids, sizes, steps=500)
    print("".join(letters[i] for i in write(params, ids[:1].tolist(), 300, sizes.T)))
