"""Losses of routers: those of the twin, and transformers' own; and the states that they come with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import torch_ref.models as torch_models
from jaxformer.data.batches import Windows
from jaxformer.errors import ConfigError
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.numerics.float64 import to_float64, torch_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from jaxformer.training import routing
from parity_tests.support.helpers import B, L, T, V, check_function, gpt_config, noise
from torch_ref.training import loop as torch_loop
from torch_ref.training import routing as torch_routing
from train.shakespeare import loss

E, CHOSEN = 6, 2
LOGITS = 3 * noise(L, B, T, E)
VALID = np.arange(T) < np.array([[T], [4], [1], [T], [2]])
MIXTURE = {"n_experts": E, "experts_per_token": CHOSEN, "balance_loss": 0.1, "router_z_loss": 0.05}


@pytest.mark.parametrize("valid", [None, VALID], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["balance_loss", "z_loss"])
def test_losses_and_their_gradients(name, valid):
    chosen = (CHOSEN,) if name == "balance_loss" else ()
    ours, theirs = (functools.partial(getattr(side, name)) for side in (routing, torch_routing))
    found = check_function(
        jax.jit(lambda x: ours(x, *chosen, None if valid is None else jnp.asarray(valid))),
        lambda x: theirs(x, *chosen, None if valid is None else torch.from_numpy(valid)),
        LOGITS,
    )
    if name == "balance_loss":
        layers = tuple(torch.from_numpy(LOGITS).double().reshape(L, B * T, E))
        with torch_float64():
            wanted = load_balancing_loss_func(layers, E, CHOSEN, None if valid is None else torch.from_numpy(valid).double())
        check_float64("transformers' loss", found, wanted)


def test_even_routing_has_the_least_loss():
    one_each = jnp.asarray(10.0 * np.eye(E, dtype=np.float32)[None, None])
    assert np.isclose(routing.balance_loss(one_each, 1), 1)
    assert np.isclose(routing.balance_loss(one_each[:, :, :1], 1), E, rtol=1e-2)


@functools.cache
def model_twins():
    config = gpt_config(**MIXTURE, gated=True, window=4, layer_pattern=("window", "full"), layers="rolled", rotary="half")
    with jax.enable_x64(True):
        model = to_float64(excite(abstract(config), 2))
        return model, load_torch(torch_models.build(config).double(), model)


@pytest.mark.usefixtures("float64")
def test_states_are_those_without_logits():
    model, twin = model_twins()
    tokens = np.random.default_rng(3).integers(0, V, (3, T)).astype(np.int32)
    (states, logits), (plain, _) = jax.jit(lambda m: (m.routed_hidden_state(tokens), m.last_hidden_state(tokens, None)))(model)
    theirs, theirs_logits = twin.eval().routed_hidden_state(torch.from_numpy(tokens))
    check_float64("states", states, theirs.detach())
    check_float64("logits", logits, theirs_logits.detach())
    check_float64("states alone", plain, theirs.detach())


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_the_recipe_trains_with_them_and_evaluates_without():
    model, twin = model_twins()
    tokens = np.random.default_rng(4).integers(0, V, (3, T + 1)).astype(np.int32)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    ours = [loss(model, Windows(inputs, jnp.asarray(targets)), key) for key in (jax.random.key(0), None)]
    pair = torch.from_numpy(inputs), torch.from_numpy(targets).long()
    theirs = [torch_loop.next_token_loss(twin.train(mode), pair) for mode in (True, False)]
    for (total, count), (wanted, wanted_count) in zip(ours, theirs, strict=True):
        check_float64("loss", total, wanted.detach())
        assert float(count) == float(wanted_count)
    assert ours[0][0] > ours[1][0]


def test_a_model_without_a_router_says_so():
    config = gpt_config(layers="rolled")
    for model, tokens in (
        (excite(abstract(config), 0), np.ones((1, 2), int)),
        (torch_models.build(config), torch.ones(1, 2).int()),
    ):
        with pytest.raises(ConfigError, match="has no router; take last_hidden_state"):
            model.routed_hidden_state(tokens)
