"""Dropout draws the right share of units, and with the same units dropped both sides are equal."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn import functional

import torch_ref.models as torch_models
from jaxformer.errors import ParityError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, check_output
from jaxformer.models import abstract
from jaxformer.nn.dropout import dropout
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.training.shared_dropout import check_masks, feed_masks, with_masks
from jaxformer.runtime.random import dropout_mask, split
from parity_tests.support.helpers import B, D, F, L, N, checks, gpt_config, run_check, seq2seq_config, twins, usually

KEY = jax.random.key(11)
RATES = [0.1, 0.25, 0.5, 0.9]


@pytest.mark.parametrize("rate", RATES)
def test_the_rate_is_kept(rate):
    n = 200_001
    dropped = n - int(dropout_mask(KEY, rate, (n,)).sum())
    assert abs(dropped - n * rate) < 5 * np.sqrt(n * rate * (1 - rate))


def test_neighbours_are_independent():
    kept = np.asarray(dropout_mask(KEY, 0.5, (200_000,)))
    together = (kept[:-1] & kept[1:]).mean()
    assert abs(together - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(kept))


SITES = split(KEY, 2)
PAIRS = {
    "steps": [jax.random.fold_in(KEY, step) for step in (0, 1)],
    "sites": SITES,
    "a site and a site in it": [SITES[0], split(SITES[0], 1)[0]],
    "seeds": [jax.random.key(seed) for seed in (0, 1)],
    "old keys": [jax.random.PRNGKey(seed) for seed in (0, 1)],
    "other generators": [jax.random.key(seed, impl="rbg") for seed in (0, 1)],
}


@pytest.mark.parametrize("pair", PAIRS)
def test_masks_of_two_keys_are_independent(pair):
    one, other = (np.asarray(dropout_mask(key, 0.5, (200_000,))) for key in PAIRS[pair])
    for shift in (0, 1, 32):
        together = (one[shift:] & np.roll(other, shift)[shift:]).mean()
        assert abs(together - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(one))


def test_the_mean_is_kept():
    x = jnp.ones(200_000)
    assert abs(float(dropout(x, 0.3, KEY).mean()) - 1) < 5 * np.sqrt(0.3 / 0.7 / x.size)


@pytest.mark.parametrize(("rate", "key"), [(0.0, KEY), (0.5, None)], ids=["rate 0", "no key"])
def test_no_dropout_is_the_identity(rate, key):
    x = jnp.arange(7.0)
    assert dropout(x, rate, key) is x


DROPPED = {
    "attention_dropout": 0.1,
    "residual_dropout": 0.2,
    "feed_forward_dropout": 0.3,
    "embedding_dropout": 0.4,
    "norm_position": "post",
    "layers": "rolled",
}
CONFIGS = {"gpt": gpt_config(**DROPPED), "encoder-decoder": seq2seq_config(**DROPPED)}
models = pytest.mark.parametrize("name", usually(CONFIGS, "gpt"))


def inputs(name):
    config = CONFIGS[name]
    return adversarial_inputs(config, B, config.context, seed=3)


@functools.cache
def recorded(name):
    model = excite(abstract(CONFIGS[name]), seed=3)
    return jax.jit(with_masks(functools.partial(call_jax, key=KEY)))(model, *map(jnp.asarray, inputs(name)))[1]


@functools.cache
def dropout_twins(name):
    def call(model, *arrays):
        with feed_masks(recorded(name)):
            return call_torch(model, *arrays)

    reference, candidate = twins(abstract(CONFIGS[name]), torch_models.build(CONFIGS[name]).train(), *inputs(name), call=call)
    return reference, Candidate(candidate.like, functools.partial(call_jax, key=KEY))


@checks
@models
def test_equal_with_the_same_units_dropped(name, check):
    run_check(check, *dropout_twins(name))


@models
def test_another_key_is_noticed(name):
    reference, candidate = dropout_twins(name)
    other = Candidate(candidate.like, functools.partial(call_jax, key=jax.random.key(12)))
    with pytest.raises(ParityError):
        check_output(reference, other)


def test_every_site_draws_once():
    T = CONFIGS["gpt"].context
    assert shapes("gpt") == [(B, T, D), *[(B, N, T, T), (B, T, D), (B, T, F), (B, T, D)] * L]


@pytest.mark.slow
def test_every_site_of_both_stacks_draws_once():
    S, T, M = 17, 14, CONFIGS["encoder-decoder"].decoder.n_layers
    encoder = [(B, S, D), *[(B, N, S, S), (B, S, D), (B, S, F), (B, S, D)] * L]
    decoder = [(B, T, D), *[(B, N, T, T), (B, T, D), (B, N, T, S), (B, T, D), (B, T, F), (B, T, D)] * M]
    assert shapes("encoder-decoder") == encoder + decoder


def shapes(name):
    return [mask.shape for mask in recorded(name)]


@models
def test_no_two_sites_draw_the_same_units(name):
    masks = [np.asarray(mask).tobytes() for mask in recorded(name)]
    assert len(set(masks)) == len(masks)


def test_the_masks_are_those_of_an_ordinary_run():
    x = jnp.arange(1.0, 401.0).reshape(20, 20)
    output, (mask,) = jax.jit(with_masks(lambda x: dropout(x, 0.5, KEY)))(x)
    np.testing.assert_array_equal(mask, dropout(x, 0.5, KEY) != 0)
    np.testing.assert_array_equal(output, dropout(x, 0.5, KEY))


@pytest.mark.slow
@models
def test_rematerialised_and_unrolled_stacks_draw_the_same_masks(name):
    for how in ({"remat": True}, {"layers": "unrolled"}):
        model = excite(abstract(replace(CONFIGS[name], **how)), seed=3)
        _, masks = jax.jit(with_masks(functools.partial(call_jax, key=KEY)))(model, *map(jnp.asarray, inputs(name)))
        for mask, expected in zip(masks, recorded(name), strict=True):
            np.testing.assert_array_equal(mask, expected)


SITE, ONES, MASK = nn.Dropout(0.5), torch.ones(2, 3), np.ones((2, 3), bool)


def fed(masks, calls=1, site=SITE):
    with feed_masks(masks):
        return [site(ONES) for _ in range(calls)]


def test_too_few_masks():
    with pytest.raises(ParityError, match="more often than the 1"):
        fed([MASK], calls=2)


def test_torch_drops_and_jax_does_not():
    with pytest.raises(ParityError, match="JAX does not; is the JAX model in training mode"):
        fed([])


def test_too_many_masks():
    with pytest.raises(ParityError, match="1 of 2 dropout masks were not used"):
        fed([MASK, MASK])


def test_a_mask_of_another_shape():
    with pytest.raises(ParityError, match=r"shape \(3, 2\)"):
        fed([MASK.T])


def test_a_mask_for_several_rows_at_once():
    with pytest.raises(ParityError, match="torch each by itself: switch broadcasting off"):
        fed([MASK[:1]])


def test_no_mask_is_taken_in_evaluation():
    (kept,) = fed([], site=nn.Dropout(0.5).eval())
    assert torch.equal(kept, ONES)


def test_afterwards_torch_draws_its_own_again():
    fed([MASK])
    torch.manual_seed(0)
    assert not torch.equal(SITE(torch.ones(100)), 2 * torch.ones(100))


def test_other_random_numbers_of_torchs_are_refused():
    with pytest.raises(ParityError, match="besides its dropout"):
        fed([MASK], site=lambda x: SITE(x) + torch.randn(3))


def drawn_mask(*shape, seed=5):
    return np.random.default_rng(seed).random(shape) < 0.6


QUERY = torch.from_numpy(np.random.default_rng(6).standard_normal((B, N, L, D)))
ATTENTION = nn.MultiheadAttention(D, N, dropout=0.4, batch_first=True).double()
KINDS = {
    "F.dropout": (lambda x: functional.dropout(x, 0.4), (B, N, L, D)),
    "scaled_dot_product_attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.4), (B, N, L, L)),
    "MultiheadAttention": (lambda x: ATTENTION(x[:, 0], x[:, 0], x[:, 0])[0], (B, N, L, L)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_torch_drops_takes_the_mask(kind):
    f, shape = KINDS[kind]
    mask = drawn_mask(*shape)
    with feed_masks([mask]):
        once = f(QUERY)
    with feed_masks([mask]):
        again = f(QUERY)
    with feed_masks([~mask]):
        other = f(QUERY)
    torch.testing.assert_close(once, again, rtol=0, atol=0)
    assert not torch.allclose(once, other)
    if kind == "F.dropout":
        np.testing.assert_array_equal(once != 0, mask)


class Flax(nnx.Module):
    def __init__(self, rngs):
        self.dropout = nnx.Dropout(0.4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            N, D, dropout_rate=0.4, broadcast_dropout=False, decode=False, deterministic=False, rngs=rngs
        )

    def __call__(self, x):
        return self.attention(self.dropout(x))


def test_flax_draws_are_recorded():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        x = jnp.ones((B, L, D))
        output, masks = jax.jit(with_masks(lambda model, x: model(x)))(Flax(nnx.Rngs(0)), x)
        np.testing.assert_allclose(output, Flax(nnx.Rngs(0))(x), rtol=1e-5)
    assert [mask.shape for mask in masks] == [(B, L, D), (B, N, L, L)]


def test_one_key_for_two_draws():
    one, other = drawn_mask(20, 20), drawn_mask(30, 20, seed=6)
    check_masks([one, other, drawn_mask(2, 2), drawn_mask(2, 2)])  # so few units may well agree
    with pytest.raises(ParityError, match="the same units in draws 0 and 2"):
        check_masks([one, other, one[:10]])
