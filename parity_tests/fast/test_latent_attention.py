"""Latent attention and its twin, in the expanded and in the absorbed form, which are one function; and what its cache holds."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.checkpoints.describe import cache_bytes
from jaxformer.errors import ConfigError
from jaxformer.models import abstract
from jaxformer.nn.cache import KeysValues, LayerCache, empty_cache
from jaxformer.nn.latent_attention import LatentAttention
from jaxformer.nn.masks import causal_mask
from jaxformer.nn.stack import Stack
from jaxformer.parity.numerics.float64 import cast, to_float64
from jaxformer.parity.numerics.metrics import check_float64, check_gradients
from jaxformer.parity.probe import excite
from jaxformer.pytree import n_bytes, named_leaves
from parity_tests.support.helpers import (
    B,
    D,
    L,
    N,
    T,
    bias_per_head,
    block_config,
    checks,
    encoder_config,
    gpt_config,
    noise,
    per_head,
    run_check,
    seq2seq_config,
    twins,
    usually,
)
from torch_ref.nn.latent_attention import LatentAttention as TorchAttention

LATENTS = {"kv_latent": 9, "head_dim": 10, "rotary": "interleaved", "rotary_dim": 4, "positions": "none"}
KINDS = {
    "latent of queries": {"query_latent": 7, "value_dim": 5, "norm_unit_offset": True, "latent_norm_epsilon": 1e-3},
    "as wide": {"rotary": "half", "qkv_bias": False, "output_bias": False, "attention_scale": 0.4},
}
FORMS = ("expanded", "absorbed")


def of_block(**fields):
    return block_config(**{name: value for name, value in (LATENTS | fields).items() if name != "positions"})


@functools.cache
def attention_twins(kind, form):
    config = of_block(**KINDS[kind], latent_form=form)
    mask, bias = per_head(B, T, T), bias_per_head(1, T, T)

    def call(module, x, mask, bias):
        return module(x, mask, bias=bias)

    return twins(LatentAttention(config), TorchAttention(config), noise(B, T, D), mask, bias, call=call)


@pytest.mark.first(8)
@checks
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", usually(KINDS, "latent of queries"))
def test_latent_attention(kind, form, check):
    reference, candidate = attention_twins(kind, form)
    if check.__name__ == "check_all_gradients":
        assert check(reference, candidate) == []
    else:
        run_check(check, reference, candidate)


X = noise(3, 9, D)


@functools.cache
def forms():
    """A module with the same weights in both forms."""
    made = [LatentAttention(of_block(**KINDS["latent of queries"], latent_form=form)) for form in FORMS]
    leaves = jax.tree.leaves(excite(made[0], 1))
    return [jax.tree.unflatten(jax.tree.structure(it), leaves) for it in made]


@jax.jit
def attended(module, x):
    return module(x, causal_mask(x.shape[1]))


@jax.jit
def gradient_and_pieces(module, x):
    """The gradient of a loss without a cache, and the output for pieces with one."""
    cache = LayerCache(KeysValues(jnp.zeros((3, 9, 13), x.dtype), None, 1), jnp.int32(0))
    outputs, start = [], 0
    for piece in jnp.split(x, [5, 6], 1):
        y, cache = module.extend(piece, cache, causal_mask(piece.shape[1], 9, start))
        start += piece.shape[1]
        cache = replace(cache, length=jnp.int32(start))
        outputs.append(y)
    return jax.grad(lambda module: jnp.square(attended(module, x)).sum())(module), jnp.concatenate(outputs, 1)


@pytest.mark.slow
def test_both_forms_are_equal_with_a_cache_and_without():
    with jax.enable_x64(True):
        (one, other), x = map(to_float64, forms()), jnp.asarray(X, jnp.float64)
        whole = attended(one, x)
        gradients, pieces = zip(*(gradient_and_pieces(it, x) for it in (one, other)), strict=True)
        check_gradients(*({key: np.asarray(leaf) for key, leaf in named_leaves(it).items()} for it in gradients))
        for output in (attended(other, x), *pieces):
            check_float64("output", output, np.asarray(whole))


def test_bfloat16_is_as_close_in_both_forms():
    wanted = np.asarray(attended(forms()[0], jnp.asarray(X)))
    found = [attended(cast(it, jnp.bfloat16), jnp.asarray(X, jnp.bfloat16)) for it in forms()]
    errors = [np.abs(np.asarray(it, np.float32) - wanted).mean() / np.std(wanted) for it in found]
    assert 1e-4 < min(errors) < max(errors) < 0.02


def program(config, queries):
    """One step of a cache of 64 tokens."""
    return str(
        jax.make_jaxpr(lambda model, ids: model.extend(ids, empty_cache(config, 1, 64))[0])(
            abstract(config), jnp.zeros((1, queries), jnp.int32)
        )
    )


@pytest.mark.parametrize(("queries", "form"), [(1, "absorbed"), (17, "absorbed"), (18, "expanded")])
def test_the_form_with_fewer_products_is_taken(queries, form):
    """Of keys of 6 units and values of 6, made of a latent of 9: 18 q < 9 * 12 + 12 q."""
    config = gpt_config(**LATENTS, context=64, layers="rolled")
    wanted = {it: program(replace(config, latent_form=it), queries) for it in FORMS}
    assert [it for it in FORMS if wanted[it] == program(config, queries)] == [form]


def test_a_cache_holds_the_latent_and_the_rotated_key_alone():
    latent, plain = gpt_config(**LATENTS), gpt_config(head_dim=10)
    sizes = [n_bytes(empty_cache(it, 2, 11).layers) for it in (latent, plain)]
    assert sizes == [L * 2 * 11 * (9 + 4) * 4, L * 2 * 11 * 2 * N * 10 * 4]
    assert [2 * cache_bytes(it, 4) for it in (latent, plain)] == sizes


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n_kv_heads": 2}, "n_kv_heads = 2 has no place in latent attention; leave it out, or kv_latent"),
        ({"window": 4}, "window = 4 has no place in latent attention"),
        ({"projections": "fused"}, "projections = 'fused' has no place"),
        ({"rotary": "none", "rotary_dim": None}, "kv_latent = 9 needs rotary positions"),
        ({"rotary_dim": None}, "rotary_dim = None leaves no unit of a head of 10 for the latent"),
        ({"rotary_dim": 10}, "rotary_dim = 10 leaves no unit of a head of 10 for the latent; give fewer than 10"),
        ({"kv_latent": 0}, "kv_latent = 0"),
        ({"kv_latent": None, "query_latent": 7}, "query_latent = 7 is not read with kv_latent = None"),
        ({"latent_form": "folded"}, "latent_form = 'folded'"),
    ],
)
def test_what_cannot_be_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        of_block(**fields)


def test_models_of_two_stacks_have_no_latents():
    with pytest.raises(ConfigError, match="kv_latent = 9 is for models of one stack"):
        seq2seq_config(**LATENTS)


def test_an_encoder_has_latents_too():
    config = encoder_config(**LATENTS)
    assert isinstance(Stack(config).blocks.attention, LatentAttention)
