"""Single updates against torch.optim, on gradients of every size, zero among them; and which parameters decay."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax, to_torch
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import UNIT_ROUNDOFF, difference
from jaxformer.parity.probe import excite
from jaxformer.parity.training.step_comparison import ONE_STEP
from jaxformer.pytree import named_leaves
from jaxformer.training import optimizers
from jaxformer.training.optimizers import bias_correction, chosen, gradient_norm, is_matrix, make_optimizer, scale_by_adam
from jaxformer.training.step import train_state, train_step
from torch_ref.models import GPT as TORCH_GPT
from torch_ref.training.optimizers import clip_
from torch_ref.training.optimizers import make_optimizer as make_torch_optimizer

pytestmark = pytest.mark.optimizers

CONFIG = GPTConfig(vocab_size=7, context=5, d_model=6, n_layers=2, n_heads=3, d_ff=10)
RATE = 0.01
OPTIMIZERS = {
    "sgd": OptimizerConfig(name="sgd", learning_rate=RATE),
    "sgd with momentum and L2": OptimizerConfig(name="sgd", learning_rate=RATE, momentum=0.9, weight_decay=0.1),
    "adam": OptimizerConfig(name="adam", learning_rate=RATE),
    "adam with L2 and a large epsilon": OptimizerConfig(name="adam", learning_rate=RATE, weight_decay=0.1, epsilon=1e-3),
    "adamw": OptimizerConfig(name="adamw", learning_rate=RATE, weight_decay=0.1),
    "clipped": OptimizerConfig(name="sgd", learning_rate=RATE, clip_norm=1e-4),
    "not clipped": OptimizerConfig(name="sgd", learning_rate=RATE, clip_norm=1e6),
}


@pytest.mark.parametrize("config", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_three_updates_and_the_moments(config, float64):
    start = excite(abstract(CONFIG), seed=0)
    model = load_torch(TORCH_GPT(CONFIG), start).double()
    theirs, _ = make_torch_optimizer(model, config, ScheduleConfig())
    ours = make_optimizer(config, ScheduleConfig())
    state = train_state(to_float64(start), ours)
    params, moments = state.model, state.moments
    rng = np.random.default_rng(1)
    for size in (1.0, 1e-8, 0.0):
        gradient = {name: size * rng.standard_normal(p.shape) for name, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(gradient[name].copy())
        clip_(model, config.clip_norm)
        theirs.step()
        updates, moments = ours.update(to_jax(gradient, params, TWIN), moments, params)
        params = jax.tree.map(jnp.add, params, updates)
        for name, array in to_torch(params, TWIN).items():
            assert np.abs(array - model.state_dict()[name].numpy()).max() <= ONE_STEP * RATE, name
    if config.name != "sgd":
        (adam,) = [part for part in jax.tree.leaves(moments, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(part, "mu")]
        for name, parameter in model.named_parameters():
            for tree, key in ((adam.mu, "exp_avg"), (adam.nu, "exp_avg_sq")):
                found, reference = to_torch(tree, TWIN)[name], theirs.state[parameter][key].numpy()
                assert difference(name, found, reference).peak <= 1e-13, name


@pytest.mark.parametrize("chunk", [5, 8, 10, 2**15])
def test_a_norm_in_chunks_is_torchs(chunk, float64, monkeypatch):
    """Chunks that divide the 40 numbers of a leaf or do not, in an array of one chunk, and beside one of fewer numbers."""
    monkeypatch.setattr(optimizers, "CHUNK", chunk)
    leaves = [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate([(2, 4, 5), (8,), ()])]
    found = jax.jit(lambda gradient: gradient_norm(gradient))([jnp.asarray(leaf) for leaf in leaves])
    wanted = torch.nn.utils.get_total_norm([torch.from_numpy(np.asarray(leaf)) for leaf in leaves])
    assert float(found) == pytest.approx(float(wanted), rel=1e-15)


@pytest.mark.parametrize("beta", [0.999, 0.98, 0.9, 0.0])
def test_the_bias_correction_is_exact_to_float32(beta):
    """As torch's, which is taken in float64: 1 - beta^t itself is off by up to 2e-5 there."""
    for count in (1, 2, 30, 1000, 100_000):
        found = float(bias_correction(beta, jnp.int32(count)))
        assert abs(found / -np.expm1(count * np.log(beta) if beta else -np.inf) - 1) < 4 * UNIT_ROUNDOFF, count


def test_adam_without_a_mean_is_torchs(float64):
    config = replace(OPTIMIZERS["adam"], beta1=0.0, beta2=0.0)
    weights, gradient = np.array([1.0, -2.0, 3.0]), np.array([1e-3, 2.0, 0.0])
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    theirs = torch.optim.Adam([parameter], RATE, betas=(0.0, 0.0))
    ours, params = make_optimizer(config, ScheduleConfig()), {"weight": jnp.asarray(weights)}
    moments = ours.init(params)
    for _ in range(2):
        parameter.grad = torch.from_numpy(gradient.copy())
        theirs.step()
        updates, moments = ours.update({"weight": jnp.asarray(gradient)}, moments, params)
        params = jax.tree.map(jnp.add, params, updates)
    np.testing.assert_allclose(params["weight"], parameter.detach().numpy(), rtol=0, atol=ONE_STEP * RATE)


def test_the_state_is_optaxs_own():
    """So a run that was begun with optax's Adam goes on with this one."""
    like = {"kernel": jnp.ones((2, 3))}
    ours, theirs = (jax.tree.map(jnp.shape, adam(0.9, 0.99, 1e-8).init(like)) for adam in (scale_by_adam, optax.scale_by_adam))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert named_leaves(make_optimizer(OPTIMIZERS["adamw"], ScheduleConfig()).init(like)).keys() >= {
        "1.mu.kernel",
        "1.nu.kernel",
    }


class Own(torch.nn.Module):
    """Parameters of a user's own: none has a name of ours."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3))
        self.embedding = torch.nn.Parameter(torch.ones(4, 3))
        self.gain = torch.nn.Parameter(torch.ones(3))
        self.bias = torch.nn.Parameter(torch.ones(3))


SHAPES = {name: tuple(parameter.shape) for name, parameter in Own().named_parameters()}
DECAYS = {
    "matrices by default": ({}, None, {"weight", "embedding"}),
    "matrices": ({"decay": "matrices"}, None, {"weight", "embedding"}),
    "all": ({"decay": "all"}, None, set(SHAPES)),
    "a predicate": ({}, lambda name, shape: name == "gain" or shape == (4, 3), {"gain", "embedding"}),
    "L2 on all": ({"name": "adam"}, None, set(SHAPES)),
    "L2 on matrices": ({"name": "sgd", "decay": "matrices"}, None, {"weight", "embedding"}),
}


@pytest.mark.parametrize("case", DECAYS)
def test_what_decays_goes_by_axes_whatever_it_is_called_on_both_sides(case):
    changes, decayed, wanted = DECAYS[case]
    config = replace(OPTIMIZERS["adamw"], **changes)
    model, params = Own(), {name: jnp.ones(shape) for name, shape in SHAPES.items()}
    theirs, _ = make_torch_optimizer(model, config, ScheduleConfig(), decayed=decayed)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    theirs.step()
    ours = make_optimizer(config, ScheduleConfig(), decayed=decayed)
    updates, _ = ours.update(jax.tree.map(jnp.zeros_like, params), ours.init(params), params)
    assert {name for name, parameter in model.named_parameters() if (parameter != 1).any()} == wanted
    assert {name for name, update in updates.items() if update.any()} == wanted


def test_a_layer_axis_and_the_biases_of_heads_make_no_matrix():
    tree = {
        "stack": {"blocks": {"bias": jnp.ones((2, 6)), "gain": jnp.ones((2, 6)), "kernel": jnp.ones((2, 6, 6))}},
        "blocks": [{"weight": jnp.ones((6, 5))}],
        "query": {"kernel": jnp.ones((6, 3, 2)), "bias": jnp.ones((3, 2))},
    }
    found = named_leaves(chosen(is_matrix, tree))
    assert {name for name, yes in found.items() if yes} == {"stack.blocks.kernel", "blocks.0.weight", "query.kernel"}


def test_what_is_frozen_neither_moves_nor_decays_nor_counts_where_gradients_are_clipped():
    """torch leaves parameters without requires_grad out of all three."""
    config, model = replace(OPTIMIZERS["adamw"], name="sgd", decay="all", clip_norm=0.1), Own()
    model.weight.requires_grad_(False)
    theirs, _ = make_torch_optimizer(model, config, ScheduleConfig())
    (sum(parameter.sum() for parameter in model.parameters())).backward()
    clip_(model, config.clip_norm)
    theirs.step()
    params = {name: jnp.ones(shape) for name, shape in SHAPES.items()}
    ours = make_optimizer(config, ScheduleConfig(), frozen=lambda name, shape: name == "weight")

    def loss(params, batch, key):
        return jnp.stack([leaf.sum() for leaf in params.values()]).sum(), jnp.ones(())

    after, _ = train_step(train_state(params, ours), (), None, loss=loss, optimizer=ours)
    np.testing.assert_array_equal(after.model["weight"], 1)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(after.model[name], parameter.detach().numpy(), rtol=1e-6, err_msg=name)
