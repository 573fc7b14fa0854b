"""Rows and positions of the inputs that say nothing of two JAX models are told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxformer as jf
from jaxformer.parity.runs.jax_reference import record_jax

VOCAB, WIDTH, TOKENS = 11, 4, 7
IDS, VALID = jf.probe(vocab=VOCAB, batch=5, length=TOKENS)
FEATURES = np.random.default_rng(0).standard_normal((3, TOKENS, WIDTH)).astype(np.float32)


class Attending(nnx.Module):
    def __init__(self):
        self.table, self.places = (nnx.Embed(n, WIDTH, rngs=nnx.Rngs(n)) for n in (VOCAB, TOKENS))
        self.last = nnx.Linear(WIDTH, 5, rngs=nnx.Rngs(1))

    def __call__(self, ids, valid=None, *, seen=TOKENS, placed=True):
        x = self.table(ids) + (self.places(jnp.arange(TOKENS)) if placed else 0)
        x = x[:, :seen]
        scores = jnp.einsum("btd,bsd->bts", x, x)
        if valid is not None:
            scores = jnp.where(valid[:, None, :seen], scores, -jnp.inf)
        return self.last(jax.nn.softmax(scores) @ x) * (1 if valid is None else valid[:, :seen, None])


@pytest.fixture(scope="module")
def model():
    return jf.excite(Attending(), seed=0)


def said(model, inputs, call):
    return record_jax(model, inputs, call, tier="A", gradients=True).not_covered


def test_nothing_is_told_of_inputs_that_all_count(model):
    every = np.arange(5 * TOKENS, dtype=np.int32).reshape(5, TOKENS) * 3 % VOCAB
    assert said(model, (every,), lambda model, ids: model(ids)) == ()


def test_positions_that_are_cut_off(model):
    told = said(model, (IDS,), lambda model, ids: model(ids, seen=5))
    assert "input 0: positions 5-6" in told


def test_positions_hidden_by_a_mask_and_a_mask_of_ones(model):
    told = said(model, (IDS, VALID), lambda model, ids, valid: model(ids, valid))
    assert f"input 0: {(~VALID).sum()} positions masked by input 1" in told
    assert "input 1: all of it" in said(model, (IDS, VALID), lambda model, ids, valid: model(ids))


def test_an_order_that_does_not_count(model):
    told = said(model, (IDS,), lambda model, ids: model(ids, placed=False))
    assert "input 0: the order of neighbours" in told


def test_ids_that_a_plain_function_looks_up_are_tried_one_by_one():
    table = jnp.asarray(np.random.default_rng(1).standard_normal((VOCAB, WIDTH)), jnp.float32)
    told = said({"table": table}, (IDS,), lambda p, ids: jnp.cumsum(p["table"][ids], 1)[:, 1:4])
    assert "input 0: positions 4-6" in told


class Places(nnx.Module):
    """Is given ids, and reads their number alone."""

    def __init__(self):
        self.table = nnx.Param(jax.random.normal(jax.random.key(0), (TOKENS, WIDTH)))

    def __call__(self, ids):
        return jnp.broadcast_to(self.table[...], (*ids.shape, WIDTH))


class Placed(nnx.Module):
    def __init__(self):
        self.table, self.places = nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0)), Places()

    def __call__(self, ids):
        return self.places(ids) + self.table(ids) * (jnp.arange(TOKENS) < 5)[:, None]


def test_a_module_that_reads_the_number_of_ids_proves_nothing_of_them():
    assert "input 0: positions 5-6" in said(Placed(), (IDS,), lambda model, ids: model(ids))


@pytest.mark.parametrize("cut", [50, 143])
def test_many_positions_are_tried_in_blocks(cut):
    table, ids = jnp.asarray(np.random.default_rng(1).standard_normal((VOCAB, WIDTH)), jnp.float32), jf.probe(VOCAB, 4, 200)[0]
    kept = np.arange(200) < np.array([cut, 200, 9, 200])[:, None]
    told = said({"table": table}, (ids,), lambda p, ids: p["table"][ids] * kept[..., None])
    assert f"input 0: positions {cut}-199 of row 0" in told
    assert "input 0: positions 9-199 of row 2" in told


def test_every_other_of_many_positions():
    table, ids = jnp.asarray(np.random.default_rng(1).standard_normal((VOCAB, WIDTH)), jnp.float32), jf.probe(VOCAB, 4, 130)[0]
    (told,) = said({"table": table}, (ids,), lambda p, ids: p["table"][ids][:, ::2])
    assert told == "input 0: 65 positions"


def test_floats(model):
    told = said({"w": jnp.eye(WIDTH)}, (FEATURES,), lambda p, x: (x @ p["w"])[:, 2:])
    assert told == ("input 0: positions 0-1",)


def test_comparisons_say_it(model):
    report = jf.compare(model, model, (IDS,), call_torch=lambda m, ids: m(ids, seen=5), call_jax=lambda m, ids: m(ids, seen=5))
    assert report.exit_code == 0
    assert "input 0: positions 5-6" in str(report)
