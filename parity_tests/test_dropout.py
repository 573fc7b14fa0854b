"""Dropout draws the right share of units, and with the same units dropped both sides are equal."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch_ref.models as torch_models
from jaxformer.errors import ParityError
from jaxformer.models import GPT
from jaxformer.nn.dropout import dropout, keep_mask
from jaxformer.parity.compare import Subject, check_output
from jaxformer.parity.dropout import feed_masks, with_masks
from jaxformer.parity.inputs import excite, hostile_tokens
from parity_tests.helpers import B, L, V, checks, gpt_config, run_check, twins

KEY = jax.random.key(11)
RATES = [0.1, 0.25, 0.5, 0.9]


@pytest.mark.parametrize("rate", RATES)
def test_the_rate_is_kept(rate):
    n = 200_001
    dropped = n - int(keep_mask(KEY, rate, (n,)).sum())
    assert abs(dropped - n * rate) < 5 * np.sqrt(n * rate * (1 - rate))


def test_neighbours_are_independent():
    kept = np.asarray(keep_mask(KEY, 0.5, (200_000,)))
    together = (kept[:-1] & kept[1:]).mean()
    assert abs(together - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(kept))


def test_the_mean_is_kept():
    x = jnp.ones(200_000)
    assert abs(float(dropout(x, 0.3, KEY).mean()) - 1) < 5 * np.sqrt(0.3 / 0.7 / x.size)


@pytest.mark.parametrize(("rate", "key"), [(0.0, KEY), (0.5, None)], ids=["rate 0", "no key"])
def test_no_dropout_is_the_identity(rate, key):
    x = jnp.arange(7.0)
    assert dropout(x, rate, key) is x


CONFIG = gpt_config(
    attention_dropout=0.1,
    residual_dropout=0.2,
    feed_forward_dropout=0.3,
    embedding_dropout=0.4,
    norm_position="post",
    layers="rolled",
)
TOKENS, VALID = hostile_tokens(V, B, CONFIG.context, seed=3)


def call_jax(model, tokens, valid):
    return model(tokens, mask=valid[:, None, None], key=KEY)


@functools.cache
def recorded():
    model = excite(GPT(CONFIG), seed=3)
    return jax.jit(with_masks(call_jax))(model, jnp.asarray(TOKENS), jnp.asarray(VALID))


def call_torch(model, tokens, valid):
    with feed_masks(model, recorded()[1]):
        return model(tokens, mask=valid[:, None, None])


@functools.cache
def dropout_twins():
    reference, subject = twins(GPT(CONFIG), torch_models.GPT(CONFIG).train(), TOKENS, VALID, call=call_torch)
    return reference, Subject(subject.like, call_jax)


@checks
def test_equal_with_the_same_units_dropped(check):
    run_check(check, *dropout_twins())


def test_another_key_is_noticed():
    reference, subject = dropout_twins()
    other = Subject(subject.like, lambda model, tokens, valid: model(tokens, mask=valid[:, None, None], key=jax.random.key(12)))
    with pytest.raises(ParityError):
        check_output(reference, other)


def test_every_site_draws_once():
    shapes = [mask.shape for mask in recorded()[1]]
    T, D, N, F = CONFIG.context, CONFIG.d_model, CONFIG.n_heads, CONFIG.d_ff
    assert shapes == [(B, T, D), *[(B, N, T, T), (B, T, D), (B, T, F), (B, T, D)] * L]


def test_the_masks_are_those_of_an_ordinary_run():
    x = jnp.arange(1.0, 401.0).reshape(20, 20)
    output, (mask,) = jax.jit(with_masks(lambda x: dropout(x, 0.5, KEY)))(x)
    np.testing.assert_array_equal(mask, dropout(x, 0.5, KEY) != 0)
    np.testing.assert_array_equal(output, dropout(x, 0.5, KEY))


def test_rematerialised_and_unrolled_stacks_draw_the_same_masks():
    for how in ({"remat": True}, {"layers": "unrolled"}):
        model = excite(GPT(replace(CONFIG, **how)), seed=3)
        _, masks = jax.jit(with_masks(call_jax))(model, jnp.asarray(TOKENS), jnp.asarray(VALID))
        for mask, expected in zip(masks, recorded()[1], strict=True):
            np.testing.assert_array_equal(mask, expected)


SITE, ONES, MASK = nn.Sequential(nn.Dropout(0.5)), torch.ones(2, 3), np.ones((2, 3), bool)


def fed(masks, calls=1, site=SITE):
    with feed_masks(site, masks):
        for _ in range(calls):
            site(ONES)


def test_too_few_masks():
    with pytest.raises(ParityError, match="more often than the 1"):
        fed([MASK], calls=2)


def test_too_many_masks():
    with pytest.raises(ParityError, match="1 of 2 dropout masks were not used"):
        fed([MASK, MASK])


def test_a_mask_of_another_shape():
    with pytest.raises(ParityError, match=r"shape \(3, 2\)"):
        fed([MASK.T])


def test_no_mask_is_taken_in_evaluation():
    fed([], site=nn.Sequential(nn.Dropout(0.5)).eval())


def test_afterwards_torch_draws_its_own_again():
    fed([MASK])
    assert "forward" not in vars(SITE[0])
