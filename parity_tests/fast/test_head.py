import functools

import pytest
from torch import nn

from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.heads import Head
from jaxformer.parity.probe import probe
from parity_tests.support.helpers import B, D, T, V, checks, gpt_config, noise, run_check, twins
from torch_ref.nn.embeddings import Embedding as TorchEmbedding
from torch_ref.nn.heads import Head as TorchHead

X, IDS = noise(B, T, D), probe(V, B, T, seed=0)[0]
HEADS = {
    f"{kernel}, {'a' if bias else 'no'} bias": {"tied": kernel == "tied", "head_bias": bias}
    for kernel in ("tied", "its own")
    for bias in (True, False)
} | {
    "scaled, a bias": {"tied": True, "head_bias": True, "logits_scale": D**-0.5},
    "soft-capped": {"tied": False, "head_bias": True, "logits_softcap": 2.0},
    "transformed": {"tied": True, "head_bias": True, "head_transform": True, "head_activation": "relu", "logits_scale": 0.5},
}


TRANSFORM = [f"transform.{module}.{leaf}" for module in ("dense", "norm") for leaf in ("weight", "bias")]


def call(modules, x, ids):
    """The embedding is read both ways, as in a model: a tied table has the gradients of both."""
    return modules["head"](x + modules["token"].encode(ids), modules["token"])


@functools.cache
def head_twins(name):
    config = gpt_config(**HEADS[name])
    ours = {"head": Head(config), "token": Embedding(V, D)}
    theirs = nn.ModuleDict({"head": TorchHead(config), "token": TorchEmbedding(V, D)})
    return twins(ours, theirs, X, IDS, call=call)


@checks
@pytest.mark.parametrize("name", HEADS)
def test_head(name, check):
    run_check(check, *head_twins(name))


@pytest.mark.parametrize("name", HEADS)
def test_it_has_no_tensor_that_it_does_not_use(name):
    reference, _ = head_twins(name)
    assert {tensor.removeprefix("head.") for tensor in reference.weights if tensor.startswith("head.")} == {
        *(["weight"] if not HEADS[name]["tied"] else []),
        *(["bias"] if HEADS[name]["head_bias"] else []),
        *(TRANSFORM if "head_transform" in HEADS[name] else []),
    }
