"""bfloat16 products over float32 parameters, against torch.autocast of the twin: tier C."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.numerics.metrics import check_bfloat16
from jaxformer.parity.probe import excite
from jaxformer.training import losses
from jaxformer.training.step import in_bfloat16, whole_gradient
from parity_tests.support.helpers import gpt_config, seq2seq_config
from torch_ref.training import losses as torch_losses

RNG = np.random.default_rng(0)
CONFIGS = {
    "pre-norm, tied, fused": gpt_config(tied=True, projections="fused", layers="rolled"),
    "gated, own head": gpt_config(gated=True, activation="silu", norm="rms", head_bias=True, layers="rolled"),
    "post-norm encoder-decoder, tied": seq2seq_config(norm_position="post", activation="relu", tied=True, stack_norm=False),
}


def jax_loss(model, batch, key):
    return losses.cross_entropy(model(*batch[:-1]), batch[-1], smoothing=0.1)


def torch_gradient(config, weights, batch, dtype, *, autocast):
    """The mean loss of the twin and its gradient, by torch's names."""
    twin = load_torch(torch_ref.models.build(config), weights).to(dtype)
    *inputs, targets = (torch.from_numpy(ids).long() for ids in batch)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = torch_losses.mean(*torch_losses.cross_entropy(twin(*inputs), targets, smoothing=0.1))
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in twin.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_step_in_bfloat16_is_as_accurate_as_torchs_autocast(config):
    weights = excite(abstract(config), seed=1)
    parts = 2 if "EncoderDecoder" in type(config).__name__ else 1
    batch = tuple(RNG.integers(1, config.vocab_size, (4, 9)).astype(np.int32) for _ in range(parts + 1))
    model = jax.tree.map(jnp.asarray, weights)
    step = jax.jit(lambda model, batch: whole_gradient(in_bfloat16(jax_loss), model, batch, None))
    loss, gradient = step(model, tuple(map(jnp.asarray, batch)))
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    truth, autocast = (
        torch_gradient(config, weights, batch, dtype, autocast=dtype is torch.float32)
        for dtype in (torch.float64, torch.float32)
    )
    check_bfloat16("loss", loss, autocast[0], truth[0])
    ours = to_torch(gradient, TWIN)
    for name, reference in truth[1].items():
        if reference.norm() > 1e-6:  # a bias of the keys has none: softmax ignores it
            check_bfloat16(name, ours[name], autocast[1][name], reference)


def test_every_product_with_a_weight_is_in_bfloat16():
    config = CONFIGS["pre-norm, tied, fused"]
    ids = jnp.ones((2, 5), jnp.int32)
    loss = jax.jit(lambda model: in_bfloat16(jax_loss)(model, (ids, ids), None))
    text = loss.lower(excite(abstract(config), seed=1)).as_text()
    products = re.findall(r"stablehlo\.dot_general .*: \(tensor<[^>]*x(\w+)>, tensor<[^>]*x(\w+)>\)", text)
    assert len(products) == 7, "four of a block, two of attention, the head"
    assert set(products) == {("bf16", "bf16")}
