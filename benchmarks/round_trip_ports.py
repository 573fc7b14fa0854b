"""JAX sides of the round trip: ports that are right, and ports with one bug each. No torch is imported."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.presets import preset
from jaxformer.evaluation.ladder import adversarial_inputs
from jaxformer.evaluation.ladder import call_jax as call_twin
from jaxformer.models import abstract
from jaxformer.parity.probe import probe
from jaxformer.parity.trace.jax_hooks import tap
from jaxformer.parity.trace.reference import apply

VOCAB, WIDTH, WIDER, RATE = 65, 6, 10, 0.3
SEQ2SEQ = EncoderDecoderConfig(
    vocab_size=23, context=17, d_model=24, n_layers=2, n_decoder_layers=2, n_heads=4, d_ff=20, embedding_scale=True
)
Weights = Mapping[str, np.ndarray]
"""torch's weights in the dump, by name."""
Make = Callable[[Weights], tuple[Any, Callable[..., Any]]]
"""Function that makes a port from torch's weights: the model, and the function that calls it."""
Ports = dict[str, Make]


def ours(config: Any, call: Callable[..., Any] = apply, **changes: Any) -> Make:
    """Return the maker of a jaxformer model with other settings; rules give it the weights."""
    return lambda _: (abstract(replace(config, **changes)), call)


_gpt2 = replace(preset("gpt2_small"), vocab_size=VOCAB, context=32, d_model=48, n_layers=2, n_heads=4, d_ff=192)
GPT2: Ports = {
    "right": ours(_gpt2),
    "gelu by erf, rolled and recomputed": ours(_gpt2, activation="gelu", layers="rolled", remat=True),
    "right, rolled and recomputed": ours(_gpt2, layers="rolled", remat=True),
    "epsilon of 1e-6": ours(_gpt2, norm_epsilon=1e-6),
    "another scale of scores": ours(_gpt2, attention_scale=1 / 12),
    "relu": ours(_gpt2, activation="relu"),
}
TRANSLATOR: Ports = {
    "right, rolled": ours(SEQ2SEQ, call_twin, layers="rolled"),
    "embeddings not scaled": ours(SEQ2SEQ, call_twin, embedding_scale=False),
    "gelu by tanh, rolled": ours(SEQ2SEQ, call_twin, activation="gelu_tanh", layers="rolled"),
}


def ids() -> tuple[np.ndarray, ...]:
    """Make the inputs of GPT-2."""
    return (probe(vocab=VOCAB, length=21)[0],)


def pairs() -> tuple[np.ndarray, ...]:
    """Make the inputs of the encoder-decoder."""
    return adversarial_inputs(SEQ2SEQ, 5, 11, seed=2)


def rows() -> tuple[np.ndarray, ...]:
    """Make rows of random numbers, the inputs of the other models."""
    return (np.random.default_rng(1).standard_normal((16, WIDTH)).astype(np.float32),)


def function(
    *, epsilon: float = 1e-5, bias: bool = True, scale: float = 1.0, tanh: bool = False, rate: float = 0.0, unset: bool = False
) -> Make:
    """Return the maker of a plain function on a dict of weights."""

    def call(held: dict[str, Any], x: Any) -> Any:
        normed = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + epsilon)
        normed = tap("norm", normed * held["norm.weight"] + held["norm.bias"])
        hidden = jax.nn.gelu(tap("up", normed @ held["up.weight"].T + (held["up.bias"] if bias else 0)), approximate=tanh)
        if rate:
            hidden = jnp.where(jax.random.bernoulli(jax.random.key(0), 1 - rate, hidden.shape), hidden / (1 - rate), 0)
        if unset:
            hidden = hidden + jnp.empty(hidden.shape)
        return x + tap("down", (hidden @ held["down.weight"].T + held["down.bias"]) * scale)

    return lambda weights: ({name: jnp.asarray(array) for name, array in weights.items()}, call)


FUNCTIONS: Ports = {
    "right": function(),
    "no bias": function(bias=False),
    "gelu by tanh": function(tanh=True),
    "epsilon of 1e-6": function(epsilon=1e-6),
    "twice as large": function(scale=2.0),
}
UNSET = function(unset=True)
"""Port that is right before jax 0.11, where `jnp.empty` gives zeros."""
DROPPED: Ports = {"right": function(rate=RATE), "another rate": function(rate=0.4), "no dropout": function()}


class Layers(linen.Module):
    """Linen module that computes the same as `function`; its dense layers are recomputed for gradients (`remat`)."""

    epsilon: float = 1e-5
    activation: Callable[[Any], Any] = linen.gelu
    """Activation; Linen's gelu is the one by tanh."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        normed = linen.LayerNorm(epsilon=self.epsilon, name="norm")(x)
        dense = linen.remat(linen.Dense)
        return x + dense(WIDTH, name="down")(self.activation(dense(WIDER, name="up")(normed)))


def of_linen(**fields: Any) -> Make:
    """Return the maker of `Layers`, with torch's weights named and transposed as Linen has them."""

    def make(weights: Weights) -> tuple[Any, Callable[..., Any]]:
        params: dict[str, dict[str, Any]] = {"norm": {}, "up": {}, "down": {}}
        for name, array in weights.items():
            module, _, leaf = name.partition(".")
            linens = "bias" if leaf == "bias" else "scale" if module == "norm" else "kernel"
            params[module][linens] = jnp.asarray(array.T)
        return {"params": params}, Layers(**fields).apply

    return make


LINEN: Ports = {
    "right": of_linen(activation=lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu by tanh": of_linen(),
    "epsilon of 1e-6": of_linen(epsilon=1e-6, activation=lambda x: jax.nn.gelu(x, approximate=False)),
}
