import functools

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax
from jaxformer.evaluation.ladder import load_torch
from jaxformer.nn.blocks import Block
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import (
    B,
    D,
    F,
    N,
    S,
    T,
    block_config,
    causal,
    checks,
    noise,
    padding,
    run_check,
    twins,
    usually,
)
from torch_ref.nn import attention as torch_attention
from torch_ref.nn.blocks import Block as TorchBlock

PLACES = ("pre", "post")
NORMS = ("layer", "rms", "std", "none")
CASES = {f"{norm}, {place}": {"norm": norm, "norm_position": place} for norm in NORMS for place in PLACES}
CASES["no feed-forward"] = {"d_ff": 0}
CROSS = {f"cross, {place}": {"norm_position": place} for place in PLACES}
X, MEMORY = noise(B, T, D), noise(B, S, D, seed=1)
RENAMED = {
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj.": "attention.out.",
    "linear1.": "feed_forward.up.",
    "linear2.": "feed_forward.down.",
    "norm1.": "attention_norm.",
    "norm2.": "feed_forward_norm.",
}


@functools.cache
def block_twins(name):
    config, cross = block_config(**(CASES | CROSS)[name]), name in CROSS
    inputs = (X, causal(B, T), *((MEMORY, padding(B, S)) if cross else ()))
    return twins(Block(config, cross=cross), TorchBlock(config, cross=cross), *inputs)


@pytest.mark.first(12)
@checks
@pytest.mark.parametrize("name", usually([*CASES, *CROSS], *list(CASES)[::2], "no feed-forward", *list(CROSS)[:1]))
def test_block(name, check):
    run_check(check, *block_twins(name))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["layer, pre", "layer, post", *CROSS])
def test_attention_weights_are_those_of_the_run(name, monkeypatch):
    reference, candidate = block_twins(name)
    block = to_float64(candidate.model(reference))
    theirs = load_torch(TorchBlock(block_config(**(CASES | CROSS)[name]), cross=name in CROSS), block).double()
    used, compute = [], torch_attention.attention_weights
    arrays = [torch.from_numpy(array if array.dtype == bool else array.astype(np.float64)) for array in reference.inputs]
    with torch.no_grad():
        looked = theirs.weights(*arrays)
        monkeypatch.setattr(
            torch_attention, "attention_weights", lambda *args, **how: used.append(compute(*args, **how)) or used[-1]
        )
        theirs(*arrays)
    found = block.weights(*(jnp.asarray(array.numpy()) for array in arrays))
    assert len(used) == 1 + (name in CROSS) == 2 - (found.cross is None)
    for which, weights in zip(("own", "cross"), used, strict=False):
        check_float64(f"jax, {which}", getattr(found, which), weights)
        check_float64(f"torch, {which}", getattr(looked, which), weights)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_equal_to_torchs_own_encoder_layer(place, activation):
    config = block_config(norm_position=place, activation=activation, projections="fused")
    block = to_float64(excite(Block(config), seed=4))
    layer = nn.TransformerEncoderLayer(
        D, N, F, dropout=0.0, activation=activation, norm_first=place == "pre", batch_first=True, dtype=torch.float64
    )
    twin = load_torch(TorchBlock(config).double(), block).state_dict()
    state = {theirs: twin[renamed(theirs)] for theirs in layer.state_dict()}
    layer.load_state_dict(state)
    mask = causal(B, T)[:1]
    reference = layer(torch.from_numpy(X[:1]).double(), src_mask=torch.from_numpy(~mask[0, 0]))
    back = to_jax({renamed(name): tensor for name, tensor in layer.state_dict().items()}, block, TWIN)
    check_float64("block", back(jnp.asarray(X[:1], jnp.float64), jnp.asarray(mask)), reference)


def renamed(name: str) -> str:
    """torch's own name -> the twin's."""
    for start, ours in RENAMED.items():
        if name.startswith(start):
            return ours + name.removeprefix(start)
    raise KeyError(name)
