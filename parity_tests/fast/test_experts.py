"""A mixture of experts and its twin, with every switch, and both ways to compute it."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.errors import ConfigError
from jaxformer.nn.experts import MixtureOfExperts, Routing, route
from jaxformer.nn.grouped import grouped_matmul, make_blocks, rows_of_block
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64, check_gradients
from parity_tests.support.helpers import (
    B,
    D,
    T,
    block_config,
    check_function,
    checks,
    gpt_config,
    noise,
    run_check,
    twins,
    usually,
)
from torch_ref.nn.experts import MixtureOfExperts as TorchMixture
from torch_ref.nn.experts import Routing as TorchRouting
from torch_ref.nn.experts import route as torch_route

E = 10
PLAIN = {"n_experts": E, "experts_per_token": 3, "feed_forward_bias": False}
GATED = PLAIN | {"gated": True, "activation": "silu"}
MIXTURES = {
    "mixtral": GATED | {"router_normalised": True},
    "qwen2": GATED | {"shared_d_ff": 13, "shared_gate": True},
    "gpt-oss": GATED
    | {
        "activation": "quick_gelu",
        "gate_limit": 1.5,
        "router": "top_k_softmax",
        "router_bias": True,
        "feed_forward_bias": True,
    },
    "sigmoid": PLAIN | {"router": "sigmoid", "router_normalised": True, "router_scale": 2.5, "shared_d_ff": 13},
    "deepseek 2": GATED | {"router_scale": 1.7, "expert_groups": 5, "groups_per_token": 3},
    "deepseek 3": GATED
    | {
        "router": "sigmoid",
        "router_normalised": True,
        "router_correction": True,
        "expert_groups": 5,
        "groups_per_token": 2,
        "group_score": "best_two",
    },
    "one": PLAIN | {"experts_per_token": 1, "feed_forward_bias": True},
    "all": GATED | {"experts_per_token": E},
}
PATHS = ("dense", "grouped")


@functools.cache
def mixture_twins(name, path):
    config = block_config(**MIXTURES[name], experts=path)
    return twins(MixtureOfExperts(config), TorchMixture(config), noise(B, T, D))


@pytest.mark.first(8)
@checks
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", usually(MIXTURES, "qwen2", "gpt-oss", "sigmoid", "deepseek 3"))
def test_mixture_of_experts(name, path, check):
    run_check(check, *mixture_twins(name, path))


@pytest.mark.parametrize(("kind", "normalised"), [("softmax", 0), ("softmax", 1), ("top_k_softmax", 0), ("sigmoid", 0)])
def test_router(kind, normalised):
    logits, scale = noise(2, 5, E), 2.5
    ours, theirs = (each(kind, 4, bool(normalised), scale) for each in (Routing, TorchRouting))
    weights = check_function(jax.jit(lambda x: route(x, ours).weights), lambda x: torch_route(x, theirs).weights, logits)
    assert np.array_equal(route(jnp.asarray(logits), ours).experts, torch_route(torch.from_numpy(logits), theirs).experts)
    adds_up = np.allclose(weights.sum(-1), scale, rtol=1e-12)
    assert adds_up == (normalised or kind == "top_k_softmax")


GROUPED = [[0.3, 0.4, 0.9, 0.1, 0.8, 0.7]]
"""Scores of the two experts of three groups; the best one is in the second group, the best two together in the third."""


@pytest.mark.parametrize(
    ("score", "taken", "correction", "chosen"),
    [
        ("best", 1, None, {2, 3}),
        ("best_two", 1, None, {4, 5}),
        ("best", 2, None, {2, 4}),
        ("best_two", 1, [0.7, 0.7, 0, 0, 0, 0], {0, 1}),
        ("best", 3, [0, 0, -1, 0, 0, -1], {4, 1}),
    ],
)
def test_experts_are_of_the_best_groups(score, taken, correction, chosen):
    scores, how, added = (
        np.array([GROUPED]),
        ("sigmoid", 2, False, 1.0, 3, taken, score),
        np.asarray(correction or [0] * 6, float),
    )
    logits = np.log(scores / (1 - scores))
    with jax.enable_x64(True):
        ours = route(jnp.asarray(logits), Routing(*how), jnp.asarray(added))
    theirs = torch_route(torch.from_numpy(logits), TorchRouting(*how), torch.from_numpy(added))
    assert {*np.asarray(ours.experts).ravel().tolist()} == {*theirs.experts.flatten().tolist()} == chosen
    np.testing.assert_allclose(ours.weights[0, 0], np.take(GROUPED, ours.experts[0, 0]), rtol=1e-12)


SIZES = {
    "uneven": [0, 200, 7, 0, 1, 65, 0],
    "one group has all": [0, 0, 273],
    "fewer rows than groups": [1, 0, 0, 1, 0, 0, 0, 2, 0, 0],
    "the last groups have none": [3, 2, 0, 0],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_grouped_product_and_its_gradients(sizes):
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    x, w = noise(sum(sizes), 5), noise(len(sizes), 5, 6, seed=1)

    def ours(x, w):
        blocks = make_blocks(jnp.asarray(group), len(sizes))
        return grouped_matmul(x.at[blocks.row].get(mode="fill", fill_value=0), w, blocks).reshape(-1, 6)[blocks.place]

    check_function(jax.jit(ours), lambda x, w: (x[:, None] @ w[group])[:, 0], x, w)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_blocks_are_of_one_group_and_hold_each_row_once(sizes):
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    blocks = jax.tree.map(np.asarray, make_blocks(jnp.asarray(group), len(sizes)))
    rows = np.append(group, -1)[blocks.row]
    assert ((rows == blocks.group[:, None]) | (rows == -1)).all()
    assert sorted(blocks.row[blocks.row < len(group)]) == [*range(len(group))]
    assert (blocks.row.reshape(-1)[blocks.place] == np.arange(len(group))).all()
    assert (rows[blocks.used :] == -1).all()
    assert (np.bincount(blocks.group, minlength=len(sizes)) * rows.shape[1] == blocks.sizes).all()


def test_rows_of_a_block():
    assert [rows_of_block(n, 64) for n in (1, 100, 512, 4096, 10**6)] == [1, 1, 4, 32, 64]


@pytest.mark.slow
def test_the_grouped_way_works_under_vmap_and_is_differentiated_twice():
    config = block_config(**GATED, router_normalised=True)
    with jax.enable_x64(True):
        model, x = to_float64(mixture_twins("mixtral", "grouped")[1].like), jnp.asarray(noise(2, 1, 4, D), jnp.float64)
        of = [replaced(model, replace(config, experts=path)) for path in PATHS]
        losses = [lambda x, model=model: (jax.vmap(model)(x) ** 2).sum() for model in of]
        one, other = (jax.jit(jax.grad(lambda x, f=f: (jax.grad(f)(x) ** 2).sum()))(x) for f in losses)
        check_float64("gradient of a gradient", one, np.asarray(other))


def replaced(model, config):
    """The same weights, computed another way."""
    made = jax.eval_shape(lambda: MixtureOfExperts(config))
    return jax.tree.unflatten(jax.tree.structure(made), jax.tree.leaves(model))


@pytest.mark.slow
def test_ways_are_equal_in_a_stack_of_layers():
    """Under a scan, with remat."""
    from jaxformer.models import abstract
    from jaxformer.parity.probe import excite

    config = gpt_config(**GATED, layers="rolled", remat=True, experts="dense")
    with jax.enable_x64(True):
        dense = to_float64(excite(abstract(config), 1))
        grouped = jax.tree.unflatten(jax.tree.structure(abstract(replace(config, experts="grouped"))), jax.tree.leaves(dense))
        tokens = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
        loss = jax.jit(jax.value_and_grad(lambda model: (model(tokens) ** 2).sum()))
        (one, gradient), (other, wanted) = loss(grouped), loss(dense)
        check_float64("loss", one, np.asarray(other))
        leaves = (enumerate(map(np.asarray, jax.tree.leaves(each))) for each in (gradient, wanted))
        check_gradients(*({str(i): leaf for i, leaf in each} for each in leaves))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"router": "sigmoid"}, "router = 'sigmoid' is not read with n_experts = 0; set n_experts"),
        ({"n_experts": 4, "experts_per_token": 5}, "experts_per_token = 5"),
        ({"n_experts": 4, "d_ff": 0}, "n_experts = 4 needs d_ff"),
        ({"n_experts": 4, "shared_gate": True}, "shared_gate = True is not read with shared_d_ff = 0"),
        ({"n_experts": 4, "router": "top_k_softmax", "router_normalised": True}, "whose weights add up to 1"),
        ({"n_experts": 4, "feed_forward_dropout": 0.1}, "feed_forward_dropout = 0.1 has no place in experts"),
        ({"n_experts": 4, "router": "hash"}, "router = 'hash'"),
        ({"n_experts": 4, "expert_groups": 3}, "expert_groups = 3 does not divide n_experts = 4"),
        ({"n_experts": 4, "groups_per_token": 2}, "groups_per_token = 2"),
        ({"n_experts": 4, "group_score": "best_two"}, "group_score = 'best_two' is not read with expert_groups = 1"),
        ({"n_experts": 4, "expert_groups": 4, "group_score": "best_two"}, "needs two experts in a group"),
        ({"n_experts": 4, "expert_groups": 2, "experts_per_token": 3}, "more than the 2 experts of groups_per_token = 1"),
        ({"n_experts": 4, "router": "top_k_softmax", "router_correction": True}, "router_correction = True is not read with"),
        ({"n_experts": 4, "router_correction": True, "balance_loss": 0.1}, "balance_loss = 0.1 counts the experts"),
        ({"expert_groups": 2}, "expert_groups = 2 is not read with n_experts = 0"),
        ({"dense_layers": 1}, "dense_layers = 1 is not read with n_experts = 0"),
        ({"n_experts": 4, "dense_d_ff": 9}, "dense_d_ff = 9 is not read with dense_layers = 0"),
        ({"n_experts": 4, "dense_layers": 1}, "dense_layers = 1 needs dense_d_ff"),
        ({"n_experts": 4, "dense_layers": 3, "dense_d_ff": 9}, "dense_layers = 3 leaves none of n_layers = 3 to experts"),
        ({"n_experts": 4, "dense_layers": 1, "dense_d_ff": 9, "shared_layers": True}, "makes one block of all layers"),
        ({"n_experts": 4, "dense_layers": 1, "dense_d_ff": 9, "relative_bias": "t5"}, "has one table for all layers"),
        ({"balance_loss": 0.1}, "balance_loss = 0.1 is not read with n_experts = 0"),
        ({"router_z_loss": -1.0, "n_experts": 2}, "router_z_loss = -1 is out of range"),
        ({"gate_limit": 7.0}, "gate_limit = 7.0 is not read with gated = False"),
        ({"gated": True, "gate_limit": 0.0}, "gate_limit = 0"),
    ],
)
def test_what_cannot_be_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        gpt_config(**fields)
