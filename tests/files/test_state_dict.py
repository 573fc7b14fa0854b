"""Weights from torch and back, by the name of a family, from a module or its state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch_ref.models
from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.state_dict import from_torch, to_torch
from jaxformer.errors import ConfigError, ConversionError, InputError
from jaxformer.models import abstract
from jaxformer.nn import MultiHeadAttention
from jaxformer.parity.probe import excite
from jaxformer.pytree import named_leaves
from tests.tiny import tiny_config

CONFIG = tiny_config()
D, N = CONFIG.d_model, CONFIG.n_heads


def same(tree, other):
    ours, theirs = named_leaves(tree), named_leaves(other)
    return list(ours) == list(theirs) and all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def said(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("source", [lambda module: module, lambda module: module.state_dict()], ids=["module", "state"])
def test_without_a_family_it_is_the_twins(source):
    twin = torch_ref.models.GPT(CONFIG)
    model = from_torch(source(twin), abstract(CONFIG))
    assert np.array_equal(model.head.kernel[...], twin.head.weight.detach().numpy().T)
    other = torch_ref.models.GPT(CONFIG)
    other.load_state_dict(to_torch(model, like=source(other)), strict=True)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in twin.state_dict().items())


@pytest.mark.parametrize("family", ["torch_attention", FAMILIES["torch_attention"]], ids=["name", "family"])
def test_by_name(family):
    theirs, like = nn.MultiheadAttention(D, N, batch_first=True), MultiHeadAttention(tiny_config(projections="fused"))
    model = from_torch(theirs, jax.eval_shape(lambda: like), family)
    assert same(from_torch(to_torch(model, family, like=theirs), like, family), model)
    other = nn.MultiheadAttention(D, N, batch_first=True)
    other.load_state_dict(to_torch(model, family))
    assert torch.equal(other.in_proj_weight, theirs.in_proj_weight)


def test_bfloat16_is_torchs():
    model = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), excite(abstract(CONFIG), seed=0))
    state = to_torch(model)
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    assert same(from_torch(state, model), model)


def test_a_name_that_is_not_known():
    for call in (lambda: from_torch({}, abstract(CONFIG), "gtp2"), lambda: to_torch(abstract(CONFIG), "gtp2")):
        message = said(call, ConfigError)
        assert message == "family = 'gtp2' is not known; did you mean 'gpt2'? docs/models.md lists all"
    assert said(lambda: to_torch({}, "x"), ConfigError) == "family = 'x' is not known; choose one of " + ", ".join(FAMILIES)


def test_another_layout_without_its_name():
    state = {name.replace("attention.", "attn."): tensor for name, tensor in torch_ref.models.GPT(CONFIG).state_dict().items()}
    hint = f"; if torch has another layout, name its family: {', '.join(FAMILIES)}"
    assert said(lambda: from_torch(state, abstract(CONFIG)), ConversionError).endswith(hint)
    assert hint not in said(lambda: from_torch(state, abstract(CONFIG), "twin"), ConversionError)
    model = excite(abstract(CONFIG), seed=0)
    assert said(lambda: to_torch(model, like=state), ConversionError).endswith(hint)


def test_what_is_neither_a_module_nor_a_state(untyped):
    twin = torch_ref.models.GPT(CONFIG)
    assert said(lambda: from_torch("gpt2", abstract(CONFIG)), InputError) == (
        "source is a str; give a torch module or its state_dict()"
    )
    for wrong in (CONFIG, twin):
        assert said(lambda wrong=wrong: from_torch(twin, wrong), InputError) == (
            f"the model is a {type(wrong).__name__}; give a JAX model, or jaxformer.abstract(config)"
        )
    assert said(lambda: to_torch(excite(abstract(CONFIG), seed=0), 3), InputError).startswith("family is an int; give a Family")


def test_shapes_alone_are_not_weights():
    message = said(lambda: to_torch(abstract(CONFIG), "twin"), ConversionError)
    assert message.endswith("of the JAX model are shapes alone; give a model with weights")


def test_the_family_that_fits_is_named():
    """GPT-2's layout and nanoGPT's have the same names, and so has GPT-BigCode's."""
    config = tiny_config(projections="fused", d_ff=3 * D)
    model = excite(abstract(config), seed=0)
    message = said(lambda: from_torch(to_torch(model, "nanogpt"), abstract(config), "gpt2"), ConversionError)
    assert "it is transposed; its rule needs layout 'transposed'" in message
    assert message.endswith("; families that fit: 'gpt_bigcode', 'gpt_bigcode_heads', 'nanogpt'; name one")
    message = said(lambda: from_torch(to_torch(model, "nanogpt"), abstract(config)), ConversionError)
    assert message.endswith("; families that fit: 'gpt_bigcode', 'gpt_bigcode_heads', 'nanogpt'; name one")
