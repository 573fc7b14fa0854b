"""JAX tensors that are unequal parts of one that torch packs."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.convert.axes import Part
from jaxformer.convert.layouts import inside
from jaxformer.errors import ConversionError
from jaxformer.parity.compare import compare
from jaxformer.parity.pairing.tensors import NO_RULES, identify
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.torch_hooks import TorchState
from parity_tests.quality.test_joined import there_and_back
from parity_tests.support.helpers import B, D, H, N, T, noise

K = 2
"""Heads of keys, which N heads of queries share."""
SIZES = (N * H, K * H, K * H)
NAMES = ("q", "k", "v")


def packed(seed=0):
    return noise(sum(SIZES), D, seed=seed)


def parts(whole, axis=0):
    """Queries, keys and values."""
    return dict(zip(NAMES, np.split(whole, np.cumsum(SIZES)[:-1], axis), strict=True))


LAID = {
    "as torch has them": lambda part: part,
    "transposed": lambda part: part.T,
    "heads apart": lambda part: part.T.reshape(D, -1, H),
}


@pytest.mark.parametrize("laid", LAID.values(), ids=LAID)
def test_queries_keys_and_values_of_one_kernel(laid):
    whole = packed()
    family = there_and_back({"qkv": whole}, {name: laid(part) for name, part in parts(whole).items()})
    assert [family.rule(name).part.number for name in NAMES] == [0, 1, 2]


def test_columns_of_a_kernel_with_inputs_first():
    whole = packed().T.copy()
    family = there_and_back({"c_attn": whole}, parts(whole, 1))
    assert family.rule("k").part.axis == 1


def test_layers_that_are_stacked():
    layers = [packed(seed=i) for i in range(2)]
    weights = {f"h.{i}.qkv": layer for i, layer in enumerate(layers)} | {f"h.{i}.norm": noise(D, seed=7 + i) for i in range(2)}
    tree = {name: np.stack([parts(layer)[name].T for layer in layers]) for name in NAMES}
    tree["norm"] = np.stack([weights[f"h.{i}.norm"] for i in range(2)])
    assert there_and_back(weights, tree).stacked("q")


def test_fresh_biases_lie_beside_their_weights():
    weights = {"qkv.weight": packed(), "qkv.bias": np.zeros(sum(SIZES), np.float32), "out.bias": np.zeros(H * K, np.float32)}
    tree = {name: {"kernel": part.T, "bias": np.zeros(len(part), np.float32)} for name, part in parts(packed()).items()}
    tree["out"] = {"bias": np.zeros(H * K, np.float32)}
    assert there_and_back(weights, tree).rule("v.bias").part == Part(2, 3, 0, (N // K, 1, 1))


def test_one_bit_less_is_no_part():
    whole = packed()
    tree = {name: part.copy() for name, part in parts(whole).items()}
    tree["v"][0, 0] = np.nextafter(tree["v"][0, 0], 1)
    with pytest.raises(ConversionError, match="convert the weights"):
        identify(TorchState({"qkv": whole}), tree, NO_RULES)


class Packed(torch.nn.Module):
    """Attention in which heads of queries share those of keys, of one packed kernel, as Phi-3 has it."""

    def __init__(self):
        super().__init__()
        self.qkv_proj, self.o_proj = torch.nn.Linear(D, sum(SIZES)), torch.nn.Linear(N * H, D)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (-1, H)).transpose(1, 2) for each in self.qkv_proj(x).split(SIZES, -1))
        k, v = (each.repeat_interleave(N // K, 1) for each in (k, v))
        heads = ((q @ k.mT) * H**-0.5).softmax(-1) @ v
        return self.o_proj(heads.transpose(1, 2).flatten(-2))


def apart(parameters, x, *, tiled=False):
    """The same of three kernels, without modules."""
    q, k, v = ((x @ parameters[f"w{name}"] + parameters[f"b{name}"]).reshape(B, T, -1, H) for name in NAMES)
    k, v = (jnp.tile(each, (1, 1, N // K, 1)) if tiled else jnp.repeat(each, N // K, 2) for each in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * H**-0.5
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    heads = jnp.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)
    return heads.reshape(B, T, -1) @ parameters["wo"] + parameters["bo"]


@pytest.mark.foreign
@pytest.mark.parametrize("tiled", [False, True])
def test_a_port_with_three_kernels(tiled):
    theirs = excite(Packed(), seed=0)
    weight, bias = (theirs.qkv_proj.weight.detach().numpy(), theirs.qkv_proj.bias.detach().numpy())
    ours = {f"w{name}": part.T for name, part in parts(weight).items()} | {
        f"b{name}": part for name, part in parts(bias).items()
    }
    ours |= {"wo": theirs.o_proj.weight.detach().numpy().T, "bo": theirs.o_proj.bias.detach().numpy()}
    report = compare(theirs, ours, (noise(B, T, D),), call_jax=lambda parameters, x: apart(parameters, x, tiled=tiled))
    assert report.exit_code == tiled, report.verdict
    assert (
        not tiled or "torch repeats each head of keys and values 2 times, 0 0 1 1; jax tiles them, 0 1 0 1" in report.verdict
    ), report.verdict


def test_shares_of_another_count_are_refused():
    with pytest.raises(ConversionError, match=r"^a Part of 3 has 2 shares; give one to each part$"):
        Part(0, 3, shares=(2, 1))


def test_what_begins_otherwise_is_not_searched(monkeypatch):
    """Large models that were never converted are refused at once."""
    monkeypatch.setattr(np, "unique", lambda array: pytest.fail("sorted"))
    whole = packed()
    assert inside(whole, {"other": noise(D, seed=5), "whole": whole, "half": whole[:2].astype(np.float64)}) == []
    monkeypatch.undo()
    assert inside(whole, {"first": whole[0], "last": whole[-1], "other": noise(D, seed=5)}) == ["first", "last"]
