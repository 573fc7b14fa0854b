"""Masks and biases of attention, wherever they are given, on both sides: torch's are not read the wrong way round, but refused
in one line that says how they become ours. So are sources of keys and values that do not fit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer.nn as ours
import torch_ref.models
import torch_ref.nn.attention
import torch_ref.nn.blocks
import torch_ref.nn.stack
from jaxformer.config.models import BlockConfig, GPTConfig
from jaxformer.errors import ConfigError, InputError
from jaxformer.models import build
from tests.tiny import quick_key

B, N, T, S, D = 2, 3, 4, 5, 6
SIZES = {"d_model": D, "n_layers": 1, "n_heads": N, "d_ff": 7}
CONFIG = BlockConfig(**SIZES)
X, MEMORY = np.zeros((B, T, D), np.float32), np.zeros((B, S, D), np.float32)
HEADS = np.zeros((B, T, N, 2), np.float32)

JAX: dict[str, Any] = {
    "array": jnp.asarray,
    "attention_weights": ours.attention_weights,
    "attention": ours.MultiHeadAttention,
    "block": ours.Block,
    "stack": ours.Stack,
    "build": partial(build, rngs=quick_key(0)),
}
TORCH: dict[str, Any] = {
    "array": torch.from_numpy,
    "attention_weights": torch_ref.nn.attention.attention_weights,
    "attention": torch_ref.nn.attention.MultiHeadAttention,
    "block": torch_ref.nn.blocks.Block,
    "stack": torch_ref.nn.stack.Stack,
    "build": torch_ref.models.build,
}
sides = pytest.mark.parametrize("of", [JAX, TORCH], ids=["jax", "torch"])

Place = Callable[[dict[str, Any], dict[str, Any]], object]
"""What is called with `mask` and `bias` by name."""


def on_itself(kind: str, method: str = "__call__") -> Place:
    return lambda of, given: getattr(of[kind](CONFIG), method)(of["array"](X), **given)


def on_a_memory(kind: str, method: str = "__call__") -> Place:
    def call(of: dict[str, Any], given: dict[str, Any]) -> object:
        named = {f"memory_{name}": value for name, value in given.items()}
        return getattr(of[kind](CONFIG, cross=True), method)(of["array"](X), memory=of["array"](MEMORY), **named)

    return call


PLACES: dict[str, tuple[Place, str, int]] = {
    "function": (lambda of, given: of["attention_weights"](*[of["array"](HEADS)] * 2, **given), "", T),
    "attention": (on_itself("attention"), "", T),
    "attention, weights": (on_itself("attention", "weights"), "", T),
    "block": (on_itself("block"), "", T),
    "block, memory": (on_a_memory("block"), "memory ", S),
    "block, weights": (on_a_memory("block", "weights"), "memory ", S),
    "stack": (on_itself("stack"), "", T),
    "stack, memory": (on_a_memory("stack"), "memory ", S),
    "stack, weights": (on_a_memory("stack", "weights"), "memory ", S),
    "stack, hidden states": (on_a_memory("stack", "hidden_states"), "memory ", S),
}
places = pytest.mark.parametrize("place", PLACES)


def said(call: Callable[[], object], kind: type[Exception] = InputError) -> str:
    """The one line that refuses a call."""
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


BOOLEANS = "; give booleans, True = may attend"
FLOATS = "; give floats, which are added to the scores"
AXES = " (batch, heads, queries, keys), or 1 for any of them"


@places
@sides
def test_torchs_float_mask(of, place, untyped):
    call, name, keys = PLACES[place]
    mask = of["array"](np.triu(np.full((1, 1, T, keys), -np.inf, np.float32), 1))
    message = said(lambda: call(of, {"mask": mask}))
    assert message == f"{name}mask is of type {mask.dtype}{BOOLEANS}: `mask == 0` of torch's 0 and -inf, or add it as bias"


@places
@sides
def test_a_mask_of_rank_2(of, place, untyped):
    call, name, keys = PLACES[place]
    message = said(lambda: call(of, {"mask": of["array"](np.ones((T, keys), bool))}))
    assert message == (
        f"{name}mask has shape {T, keys}; give {B, N, T, keys}{AXES}: `mask[None, None]`, "
        "or `~mask[None, None]` of torch.nn's, where True hides a key"
    )


@places
@sides
def test_booleans_as_bias(of, place, untyped):
    call, name, keys = PLACES[place]
    bias = of["array"](np.ones((1, 1, T, keys), bool))
    assert said(lambda: call(of, {"bias": bias})) == f"{name}bias is of type {bias.dtype}{FLOATS}; give booleans as mask"


@places
@sides
def test_a_bias_of_another_shape(of, place, untyped):
    call, name, keys = PLACES[place]
    message = said(lambda: call(of, {"bias": of["array"](np.zeros((N, T, keys), np.float32))}))
    assert message == f"{name}bias has shape {N, T, keys}; give {B, N, T, keys}{AXES}"


@places
@sides
def test_lists(of, place, untyped):
    call, name, _ = PLACES[place]
    given = [[[[True]]]]
    assert said(lambda: call(of, {"mask": given})) == f"{name}mask is a list; give an array of booleans, True = may attend"
    assert said(lambda: call(of, {"bias": given})) == (
        f"{name}bias is a list; give an array of floats, which are added to the scores"
    )


LOWER = {
    "padding": ((B, T), "[:, None, None]"),
    "each row its own": ((B, T, T), "[:, None]"),
    "rows and heads in one": ((B * N, T, T), f".reshape{B, N, T, T}"),
}


@pytest.mark.parametrize("name", LOWER)
@sides
def test_how_torchs_masks_become_ours(of, name, untyped):
    shape, step = LOWER[name]
    message = said(lambda: on_itself("attention")(of, {"mask": of["array"](np.ones(shape, bool))}))
    assert message.endswith(f": `mask{step}`, or `~mask{step}` of torch.nn's, where True hides a key")
    mask = np.random.default_rng(0).random(shape) < 0.5
    on_itself("attention")(of, {"mask": of["array"](eval(f"mask{step}", {"mask": mask}))})


@sides
def test_ones_and_zeros(of, untyped):
    message = said(lambda: on_itself("attention")(of, {"mask": of["array"](np.ones((B, 1, 1, T), np.int32))}))
    assert message.endswith(f"{BOOLEANS}: `mask == 1` of ones and zeros")


@sides
def test_a_models_bias(of, untyped):
    model = of["build"](GPTConfig(**SIZES, vocab_size=7, context=T))
    tokens, bias = of["array"](np.ones((B, T), np.int32)), of["array"](np.zeros((N, T, T), np.float32))
    for call in (model, model.attention_weights, model.hidden_states):
        assert said(lambda call=call: call(tokens, bias=bias)).startswith(f"bias has shape {N, T, T}; give {B, N, T, T}")


NO_SOURCES = {
    "the queries' own": (None, "the source of keys: shape (2, 4, 6); give (batch, length, 8)"),
    "one for both": ((B, S, 8), "the source of values: shape (2, 5, 8); give (batch, length, 9)"),
    "another order": (((B, S, 9), (B, S, 8)), "the source of keys: shape (2, 5, 9); give (batch, length, 8)"),
    "other lengths": (((B, S, 8), (B, T, 9)), "the source of keys is (2, 5) (batch, length), that of values (2, 4);"),
}


@pytest.mark.parametrize("name", NO_SOURCES)
@sides
def test_sources_that_do_not_fit(of, name, untyped):
    shapes, wanted = NO_SOURCES[name]
    module = of["attention"](CONFIG, cross=True, kdim=8, vdim=9)

    def source(shape: Any) -> Any:
        return tuple(map(source, shape)) if isinstance(shape[0], tuple) else of["array"](np.zeros(shape, np.float32))

    message = said(lambda: module(of["array"](X), None if shapes is None else source(shapes)))
    assert message.startswith(wanted)


@sides
def test_widths_that_cannot_be_built(of):
    assert said(lambda: of["attention"](CONFIG, kdim=8), ConfigError) == (
        "kdim = 8 is the width of a memory; build with cross=True to attend to one"
    )
    assert said(lambda: of["attention"](CONFIG, cross=True, vdim=0), ConfigError).startswith("vdim = 0 is out of range;")
