"""Causes in models of plain functions with taps, found in torch's own code, which runs again with one thing altered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, T, V, D = 3, 13, 19, 20
IDS = np.random.default_rng(0).integers(3, V, (B, T)).astype(np.int32)
CHECKS = ("weights", "forward", "local")


class Picture(torch.nn.Module):
    """Convolutions, norms and poolings, as vision models have them."""

    def __init__(self):
        super().__init__()
        self.stem, self.batch = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8)
        self.pool, self.body = torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(8, 12, 3, padding=1, groups=4)
        self.groups, self.gamma = torch.nn.GroupNorm(3, 12), torch.nn.Parameter(torch.ones(12))
        self.mix, self.head = torch.nn.Conv2d(12, 12, 1), torch.nn.Linear(12 * 2 * 4, 7)

    def forward(self, x):
        x = self.pool(torch.nn.functional.relu(self.batch(self.stem(x))))
        x = torch.nn.functional.silu(self.groups(self.body(x)))
        x = x + self.gamma[:, None, None] * self.mix(x)
        x = torch.nn.functional.avg_pool2d(x, 2, 2, ceil_mode=True)
        return self.head(x.flatten(1))


PIXELS = noise(2, 3, 16, 28, seed=1)


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def weights_of(picture):
    """Plain arrays in dicts, kernels as XLA has them."""
    tree = {name: {"p": array(each.weight), "q": array(each.bias)} for name, each in picture.named_children() if name != "pool"}
    for name in ("stem", "body", "mix"):
        tree[name]["p"] = tree[name]["p"].transpose(2, 3, 1, 0)
    tree["head"]["p"] = tree["head"]["p"].T
    stats = {"m": array(picture.batch.running_mean), "v": array(picture.batch.running_var)}
    return tree | {"batch": tree["batch"] | stats, "layer": {"g": array(picture.gamma)}}


def seen(weights, x, bug):
    """A plain function with taps; pictures are `B H W C`."""

    def conv(name, x, stride=1, groups=1, pad=1):
        kernel = weights[name]["p"][::-1, ::-1] if name == bug.get("flip") else weights[name]["p"]
        pads = bug.get(f"{name} pads", [(pad, pad)] * 2)
        how = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
        y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), pads, **how)
        return jaxformer.tap(name, y + weights[name]["q"] * (name != bug.get("bare")))

    def window(x, start, f, size, pads):
        return jax.lax.reduce_window(x, start, f, (1, size, size, 1), (1, 2, 2, 1), ((0, 0), *pads, (0, 0)))

    w, x = weights, conv("stem", x.transpose(0, 2, 3, 1), 2)
    mean, variance = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if bug.get("batch") else (w["batch"]["m"], w["batch"]["v"])
    x = (x - mean) / jnp.sqrt(variance + bug.get("eps", 1e-5)) * w["batch"]["p"] + w["batch"]["q"]
    x, pads = jax.nn.relu(jaxformer.tap("batch", x)), bug.get("pool", [(1, 1)] * 2)
    x = window(x, 0.0, jax.lax.add, 3, pads) / 9 if bug.get("mean") else window(x, -jnp.inf, jax.lax.max, 3, pads)
    x = conv("body", x, groups=4)
    n = bug.get("groups", 3)
    y = x.reshape(*x.shape[:3], n, -1)
    around = bug.get("around", (1, 2, 4))
    y = (y - y.mean(around, keepdims=True)) / jnp.sqrt(y.var(around, keepdims=True) + 1e-5)
    x = jaxformer.tap("groups", y.reshape(x.shape) * w["groups"]["p"] + w["groups"]["q"])
    x = bug.get("act", jax.nn.silu)(x)
    x = x + conv("mix", x, pad=0) * (1 if bug.get("no scale") else w["layer"]["g"])
    pads = [(0, 0), (0, x.shape[2] % 2)]
    count = window(jnp.ones_like(x), 0.0, jax.lax.add, 2, pads)
    x = window(x, 0.0, jax.lax.add, 2, pads) / (4.0 if bug.get("count") else count)
    x = x if bug.get("flat") else x.transpose(0, 3, 1, 2)
    return jaxformer.tap("head", x.reshape(len(x), -1) @ w["head"]["p"] + w["head"]["q"])


PICTURES = {
    "same": ({"stem pads": "SAME"}, "stem", "pads as 'SAME' does"),
    "flipped": ({"flip": "stem"}, "stem", "torch uses stem.weight as it is; jax "),
    "bare": ({"bare": "stem"}, "stem", "torch uses stem.bias; jax leaves it out"),
    "statistics": (
        {"batch": True},
        "batch",
        "torch normalises by the running statistics (inference); jax normalises by the batch's own statistics",
    ),
    "epsilon": ({"eps": 1e-3}, "batch", "torch epsilon 1e-05; jax epsilon 0.001"),
    "pooling": ({"pool": [(0, 1)] * 2}, "body", "pads as 'SAME' does"),
    "groups": ({"groups": 4}, "groups", "torch groups.num_groups 3; jax groups.num_groups 4"),
    "positions": ({"around": (4,)}, "groups", "jax normalises each position by itself"),
    "batches": ({"around": (0, 1, 2, 4)}, "groups", "jax normalises over all rows of the batch"),
    "activation": ({"act": jax.nn.relu}, "mix", "relu there"),
    "layer scale": ({"no scale": True}, "head", "torch uses gamma as it is; jax leaves it out (takes 1 for it)"),
    "count": ({"count": True}, "head", "counts padded entries in the mean"),
    "after": ({"body pads": [(0, 2)] * 2}, "body", "pads at the end alone"),
    "mean": ({"mean": True}, "body", "takes the mean there"),
    "flat": ({"flat": True}, "head", "merges the axes in the order 0, 2, 3, 1"),
}


@pytest.fixture(scope="module")
def picture():
    return excite(Picture().eval(), seed=1)


@pytest.mark.parametrize("name", usually(PICTURES, "count", "pooling", "flat"))
def test_causes_in_a_vision_model_of_functions(picture, name):
    bug, module, cause = PICTURES[name]
    report = compare(picture, weights_of(picture), (PIXELS,), call_jax=lambda w, x: seen(w, x, bug), checks=CHECKS, tier="A")
    assert report.diverging[0].name == module, str(report)
    assert all(cause in each.cause for each in report.diverging), str(report)


class Reader(torch.nn.Module):
    """A mask that is made inside, positions for all rows at once, and a first token."""

    def __init__(self):
        super().__init__()
        self.token, self.place = torch.nn.Embedding(V, D), torch.nn.Embedding(31, D)
        self.query, self.key, self.value = (torch.nn.Linear(D, D) for _ in range(3))
        self.norm, self.head = torch.nn.LayerNorm(D), torch.nn.Linear(D, 7)
        self.register_buffer("past", torch.ones(31, 31).tril().bool()[None])

    def forward(self, ids):
        x = self.norm(self.token(ids) + self.place(torch.arange(ids.shape[1])[None]))
        scores = self.query(x) @ self.key(x).mT * D**-0.5
        seen = self.past[:, : ids.shape[1], : ids.shape[1]]
        x = x + scores.masked_fill(~seen, -torch.inf).softmax(-1) @ self.value(x)
        return self.head(x[:, 1])


def read(weights, ids, bug):
    """A plain function with taps."""

    def linear(name, x):
        return jaxformer.tap(name, x @ weights[name]["w"] + weights[name]["b"])

    length = ids.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length) + bug.get("first", 0), ids.shape)
    x = jaxformer.tap("token", weights["token"]["w"][ids]) + jaxformer.tap("place", weights["place"]["w"][positions])
    for _ in range(bug.get("norms", 1)):
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * weights["norm"]["w"] + weights[
            "norm"
        ]["b"]
    q, k, v = (linear(name, x) for name in ("query", "key", "value"))
    away = jnp.arange(length)[:, None] - jnp.arange(length)
    scores = jnp.where(away >= -bug.get("ahead", 0), q @ k.mT * D**-0.5, -jnp.inf)
    x = x + jax.nn.softmax(scores, -1) @ v
    return linear("head", x.max(1) if bug.get("largest") else x[:, bug.get("token", 1)])


READINGS = {
    "positions": ({"first": 2}, "rows moved by +2"),
    "leak": ({"ahead": 1}, "jax lets every query see one key more ahead"),
    "last": ({"token": -1}, "takes the last along axis 1"),
    "largest": ({"largest": True}, "takes the largest along axis 1"),
    "no norm": ({"norms": 0}, "torch applies norm; jax leaves it out"),
    "norm twice": ({"norms": 2}, "jax does it twice"),
}


@pytest.fixture(scope="module")
def reader():
    return excite(Reader().eval(), seed=5)


@pytest.mark.parametrize("name", usually(READINGS, "no norm", "last"))
def test_causes_in_a_reader_of_functions(reader, name):
    bug, cause = READINGS[name]
    weights = {each: {"w": array(module.weight)} for each, module in reader.named_children()}
    for each in ("query", "key", "value", "norm", "head"):
        module = reader.get_submodule(each)
        weight = module.weight.T if module.weight.ndim > 1 else module.weight
        weights[each] = {"w": array(weight), "b": array(module.bias)}
    report = compare(reader, weights, (IDS,), call_jax=lambda w, ids: read(w, ids, bug), checks=CHECKS, tier="A")
    assert any(cause in each.cause for each in report.diverging), str(report)


class Attending(torch.nn.Module):
    """Its attention is one operation, which adds up in another order where there are no gradients."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(D, 4, batch_first=True)
        self.gamma = torch.nn.Parameter(torch.full((D,), 0.3))

    def forward(self, x):
        return x + self.gamma * self.attention(x, x, x, need_weights=False)[0]


def attend(weights, x):
    """With 1 + gamma."""
    w, b = weights["attention.in_proj_weight"], weights["attention.in_proj_bias"]
    q, k, v = ((x @ w.T + b).reshape(B, T, 3, 4, D // 4)[:, :, i] for i in range(3))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / (D // 4) ** 0.5
    found = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, -1), v).reshape(x.shape)
    return x + (1 + weights["gamma"]) * (found @ weights["attention.out_proj.weight"].T + weights["attention.out_proj.bias"])


def test_an_array_that_torch_makes_again_may_be_rounded_otherwise():
    theirs = excite(Attending().eval(), seed=1)
    weights = {name: array(tensor) for name, tensor in theirs.state_dict().items()}
    report = compare(theirs, weights, (noise(B, T, D),), call_jax=attend, checks=(*CHECKS, "gradients"), tier="A")
    assert all("torch uses gamma as it is; jax adds 1 to it" in each.cause for each in report.diverging), str(report)
