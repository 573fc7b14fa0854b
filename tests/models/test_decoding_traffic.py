"""What a token moves in memory: weights and cache are read where they lie, and a cache grows while it is filled."""

import re
from dataclasses import replace
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer as jf
from jaxformer import pytree
from jaxformer.decoding.choose import make_choice
from jaxformer.nn.linear import Columns
from tests.tiny import quick_key, tiny_config

CONTEXT, BATCH, PROMPT, SIZE = 176, 3, 16, 128
CONFIG = tiny_config(context=CONTEXT, n_layers=3, d_ff=24, init="torch")
MODULE = import_module("jaxformer.decoding.generate")
capacities, _generate = MODULE.capacities, MODULE._generate


@pytest.fixture(scope="module")
def model():
    return jax.tree.map(lambda leaf: 3 * leaf, jf.GPT(CONFIG, rngs=quick_key(1)))


LATENTS = replace(CONFIG, positions="none", kv_latent=13, head_dim=10, rotary="half", rotary_dim=4)


def loops_over_tokens(config: jf.GPTConfig, batch: int) -> list[tuple[str, int]]:
    """The compiled loops in which tokens are written by a cache, and for how many it has room."""
    text, scalar = jax.ShapeDtypeStruct((batch, PROMPT), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
    padding = jax.ShapeDtypeStruct((batch,), jnp.int32)
    choice, ngram = make_choice(None, None, None, None, vocab_size=11, n_tokens=SIZE, size=SIZE)
    traced = _generate.trace(jf.abstract(config), text, scalar, padding, scalar, choice, SIZE, ngram, False)
    program = traced.lower(lowering_platforms=("cpu",)).compile().as_text()
    found, (heads, width) = [], config.cached_heads
    for name in set(re.findall(r"body=%?([\w.\-]+)", program)):
        body = whole_loop(program, name)
        rooms = re.findall(rf"= f32\[{batch * heads},(\d+),{width}\]", body)
        if f"f32[{batch},{config.vocab_size}]" in body and rooms:
            found.append((body, int(rooms[0])))
    return found


def whole_loop(program: str, name: str) -> str:
    """What a turn of a loop does, and what the loops in it do."""
    body = re.search(rf"^%?{re.escape(name)} .*?^}}", program, re.M | re.S).group(0)
    return body + "".join(whole_loop(program, inner) for inner in re.findall(r"body=%?([\w.\-]+)", body))


def made(body: str, *shape: int) -> list[str]:
    """The operations of a loop that make a new float array of that shape, but those that write a row in place."""
    size = ",".join(map(str, shape))
    results = re.findall(rf"%([\w.\-]+) = f32\[{size}\]\S* (?!get-tuple-element|parameter|bitcast\()", body)
    return [name for name in results if "dynamic-update-slice" not in name]


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="reads the CPU's program")
@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (CONFIG, BATCH),
        (CONFIG, 1),
        (LATENTS, BATCH),
    ],
    ids=["heads", "heads, one text", "latents"],
)
def test_a_token_copies_neither_weights_nor_cache(config, batch, monkeypatch):
    _generate.clear_cache()
    rooms = capacities(jf.abstract(config), batch, PROMPT, PROMPT + SIZE)
    loops, (heads, width) = loops_over_tokens(config, batch), config.cached_heads
    assert sorted(room for _, room in loops) == rooms
    for body, room in loops:
        assert made(body, batch * heads, room, width) == []
        assert made(body, config.d_model, config.d_ff) == []
        groups = len(Columns.of(jnp.zeros((config.d_ff, config.d_model))).columns)
        assert made(body, groups, config.d_ff // groups, config.d_model) == []

    monkeypatch.setattr(MODULE, "lay_out", lambda model, rows, tokens: model)
    _generate.clear_cache()
    assert any(made(body, config.d_model, config.d_ff) for body, _ in loops_over_tokens(config, batch)), "slices are not seen"


@pytest.mark.slow
def test_a_growing_cache_writes_the_same(model, monkeypatch):
    rooms = capacities(model, BATCH, PROMPT, PROMPT + SIZE)
    assert rooms == sorted(set(rooms))
    assert len(rooms) > 1
    ids = np.random.default_rng(0).integers(0, 11, (BATCH, 9), dtype=np.int32)
    valid = np.arange(9)[None] >= np.array([[0], [2], [5]])
    _generate.clear_cache()
    grown = jf.generate(model, ids, SIZE, valid=valid)
    monkeypatch.setattr(MODULE, "capacities", lambda model, batch, least, most: [most])
    _generate.clear_cache()
    assert np.array_equal(grown, jf.generate(model, ids, SIZE, valid=valid))
    assert len(np.unique(grown)) > 2


def test_small_caches_do_not_grow():
    preset = jf.preset("gpt2_small")
    assert capacities(jf.abstract(preset), 1, 16, 272) == [272]
    assert capacities(jf.abstract(preset), 16, 16, 1024)[-1] == 1024


@pytest.mark.slow
def test_layers_apart_are_the_same_layers(model):
    apart = pytree.take_layers_apart(model)
    ids = np.array([[1, 2, 3, 4]])
    assert np.allclose(apart(ids), model(ids), rtol=0, atol=1e-6)
