"""JAX tensors that hold several of torch's, one after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.convert.host import same_bits
from jaxformer.convert.rules import Family, to_jax, to_torch
from jaxformer.errors import ConversionError
from jaxformer.parity.compare import compare
from jaxformer.parity.pairing.tensors import NO_RULES, identify
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.torch_hooks import TorchState
from parity_tests.support.helpers import D, H, N, T, noise

NAMES = ("q", "k", "v")


def linears(sizes=(D, D, D), prefix="", seed=0):
    """torch's, by name."""
    return {f"{prefix}{name}.weight": noise(n, D, seed=seed + i) for i, (name, n) in enumerate(zip(NAMES, sizes, strict=True))}


def there_and_back(weights, tree) -> Family:
    """The family that is found; it gives torch's weights from the tree and the tree from torch's weights."""
    family = identify(TorchState(weights), tree, NO_RULES).family
    held, back = to_torch(tree, family), to_jax(weights, tree, family)
    assert {name: same_bits(held[name], array) for name, array in weights.items()} == dict.fromkeys(held, True)
    assert jax.tree.all(jax.tree.map(lambda ours, theirs: same_bits(np.asarray(ours), np.asarray(theirs)), back, tree))
    return family


LAID = {
    "as torch has it": lambda parts: np.concatenate(parts),
    "transposed": lambda parts: np.concatenate([part.T for part in parts], 1),
    "along torch's last axis": lambda parts: np.concatenate(parts, 1),
    "heads apart": lambda parts: np.stack([part.T.reshape(D, N, H) for part in parts], 1),
    "head by head": lambda parts: np.stack([part.T.reshape(D, N, H) for part in parts], 2),
}


@pytest.mark.parametrize("laid", LAID.values(), ids=LAID)
def test_one_kernel_for_queries_keys_and_values(laid):
    weights = linears()
    rule = there_and_back(weights, {"qkv": laid([*weights.values()])}).rule("qkv")
    assert rule.join is not None
    assert rule.join.names == NAMES


def test_fewer_heads_for_keys_and_values():
    weights = linears((2 * D, D, D))
    rule = there_and_back(weights, {"qkv": np.concatenate([*weights.values()]).T}).rule("qkv")
    assert rule.join is not None
    assert rule.join.shares == (2, 1, 1)


def test_layers_that_are_stacked():
    layers = [linears(prefix=f"h.{i}.", seed=3 * i) | {f"h.{i}.norm": noise(D, seed=9 + i)} for i in range(2)]
    tree = {
        "qkv": np.stack([np.concatenate([*layer.values()][:3]).T for layer in layers]),
        "norm": np.stack([layer[f"h.{i}.norm"] for i, layer in enumerate(layers)]),
    }
    assert there_and_back({**layers[0], **layers[1]}, tree).stacked("qkv")


def test_fresh_biases_lie_beside_their_weights():
    weights = (
        linears() | {f"{name}.bias": np.zeros(D, np.float32) for name in NAMES} | {"out.bias": np.zeros(3 * D, np.float32)}
    )
    tree = {
        "qkv": {"kernel": np.concatenate([weights[f"{name}.weight"] for name in NAMES]).T, "bias": np.zeros(3 * D, np.float32)},
        "out": {"bias": np.zeros(3 * D, np.float32)},
    }
    assert there_and_back(weights, tree).rule("qkv.bias").join is not None


def test_one_bit_less_is_no_part():
    weights = linears()
    wrong = np.concatenate([*weights.values()])
    wrong[0, 0] = np.nextafter(wrong[0, 0], 1)
    with pytest.raises(ConversionError, match="convert the weights"):
        identify(TorchState(weights), {"qkv": wrong}, NO_RULES)


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(D, D) for _ in NAMES)

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)


@pytest.mark.parametrize(("order", "status"), [("qkv", "equal"), ("kqv", "different")])
def test_it_serves_a_comparison(order, status):
    """Parts that are joined in another order are another function."""
    theirs = excite(Attends().eval(), seed=0)
    held = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    params = {"qkv": {it: np.concatenate([held[f"{name}.{it}"] for name in order]) for it in ("weight", "bias")}}

    def ours(params, x):
        q, k, v = jnp.split(x @ params["qkv"]["weight"].T + params["qkv"]["bias"], 3, -1)
        return jax.nn.softmax(q @ k.mT) @ v

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        report = compare(theirs, params, (noise(2, T, D, seed=1),), call_jax=ours, tier="A")
    assert report.status == status, str(report)
    assert f"weight of qkv holds {', '.join(order)} of torch's" in report.stages[0].says


def test_a_wrong_bias_beside_a_joined_kernel_is_told():
    theirs = excite(Attends().eval(), seed=0)
    held = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    params = {"qkv": {it: np.concatenate([held[f"{name}.{it}"] for name in NAMES]) for it in ("weight", "bias")}}
    params["qkv"]["bias"][D] *= 2
    report = compare(theirs, params, (noise(2, T, D, seed=1),), call_jax=lambda params, x: x, checks=("weights",))
    assert report.verdict.startswith("DIFFERENT: weights: 1 of 6 tensors differ, first k.bias"), str(report)
