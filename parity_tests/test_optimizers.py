"""Single updates against torch.optim, on gradients of every size, zero among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.config import GPTConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax, to_torch
from jaxformer.models import GPT
from jaxformer.nn.tree import named_leaves
from jaxformer.parity.checks import load_torch
from jaxformer.parity.inputs import excite, widen
from jaxformer.parity.training import ONE_STEP
from jaxformer.settings import OptimizerConfig, ScheduleConfig
from jaxformer.training.optimizers import make_optimizer, matrices
from jaxformer.training.step import train_state
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
    start = excite(GPT(CONFIG), seed=0)
    model = load_torch(TORCH_GPT(CONFIG), start).double()
    theirs, _ = make_torch_optimizer(model, config, ScheduleConfig())
    ours = make_optimizer(config, ScheduleConfig())
    state = train_state(widen(start), ours)
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
                np.testing.assert_allclose(to_torch(tree, TWIN)[name], theirs.state[parameter][key].numpy(), rtol=1e-13)


def test_matrices_are_named_not_counted_by_axes():
    model = GPT(CONFIG)
    decayed = named_leaves(matrices(model))
    for name, leaf in named_leaves(model).items():
        assert decayed[name] == (leaf.ndim - ("blocks." in name) >= 2), name
    assert decayed["stack.blocks.attention.query.kernel"]
    assert not decayed["stack.blocks.attention.query.bias"]
