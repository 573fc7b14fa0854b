"""Layers in a loop or a vmap over stacked parameters, and rematerialised ones: each is compared by itself, whatever runs it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import usually

LAYERS, WIDTH, OUT = 3, 6, 5
X = np.random.default_rng(0).standard_normal((2, 4, WIDTH)).astype(np.float32)
RIGHT = jnp.ones(LAYERS)
WRONG = RIGHT.at[0].set(1.1)
"""What each layer multiplies its branch by: a bug in the first one."""


class TorchLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.dense(x))


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(TorchLayer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class TorchExperts(TorchNet):
    """The layers side by side, and the head on their sum."""

    def forward(self, x):
        return self.head(sum(layer(x) for layer in self.layers))


THEIRS = excite(TorchNet(), seed=0)
EXPERTS = excite(TorchExperts(), seed=0)


class Layer(linen.Module):
    @linen.compact
    def __call__(self, x, factor):
        return x + factor * jnp.tanh(linen.Dense(WIDTH, name="dense")(x)), None


class LinenNet(linen.Module):
    remat: bool

    @linen.compact
    def __call__(self, x, factors):
        layer = linen.remat(Layer) if self.remat else Layer
        scanned = linen.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return linen.Dense(OUT, name="head")(scanned(name="layers")(x, factors)[0])


class LinenExperts(linen.Module):
    @linen.compact
    def __call__(self, x, factors):
        mapped = linen.vmap(
            Layer, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=(None, 0), axis_size=LAYERS
        )
        return linen.Dense(OUT, name="head")(mapped(name="layers")(x, factors)[0].sum(0))


class NnxLayer(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, factor):
        return x + factor * jnp.tanh(self.dense(x))


class NnxRematLayer(NnxLayer):
    __call__ = nnx.remat(NnxLayer.__call__)


@nnx.scan(in_axes=(nnx.Carry, 0, 0), out_axes=nnx.Carry)
def by_scan(x, layer, factor):
    return layer(x, factor)


@nnx.scan(in_axes=(nnx.Carry, 0, 0), out_axes=nnx.Carry)
@nnx.remat
def by_scan_rematerialised(x, layer, factor):
    return layer(x, factor)


def by_vmap(x, layers, factors):
    return nnx.vmap(lambda layer, x, factor: layer(x, factor), in_axes=(0, None, 0), out_axes=1)(layers, x, factors).sum(1)


class NnxStack(nnx.Module):
    """The layers are one module whose arrays have a leading axis."""

    def __init__(self, layer, loop, rngs):
        self.layers = nnx.split_rngs(splits=LAYERS)(nnx.vmap(layer))(rngs)
        self.head, self.loop = nnx.Linear(WIDTH, OUT, rngs=rngs), loop

    def __call__(self, x, factors):
        return self.head(self.loop(x, self.layers, factors))


class NnxList(nnx.Module):
    """The layers are modules of their own."""

    def __init__(self, layer, rngs):
        self.layers = nnx.List(layer(rngs) for _ in range(LAYERS))
        self.head = nnx.Linear(WIDTH, OUT, rngs=rngs)

    def __call__(self, x, factors):
        for layer, factor in zip(self.layers, factors, strict=True):
            x = layer(x, factor)
        return self.head(x)


def one_layer(x, given):
    params, factor = given
    dense = tap("layers.dense", x @ params["dense"]["kernel"] + params["dense"]["bias"])
    return tap("layers", x + factor * jnp.tanh(dense)), None


checkpointed_layer = jax.checkpoint(one_layer)


def function(params, x, factors, *, body, reverse=False):
    """The layers may lie the other way round, and be gone through backwards."""
    given = params["layers"], factors[::-1] if reverse else factors
    x, _ = jax.lax.scan(body, x, given, reverse=reverse)
    return tap("head", x @ params["head"]["kernel"] + params["head"]["bias"])


def mapped_function(params, x, factors):
    """By a vmap of its own."""
    layers = jax.vmap(lambda given, x: one_layer(x, given)[0], in_axes=((0, 0), None))((params["layers"], factors), x)
    return tap("head", layers.sum(0) @ params["head"]["kernel"] + params["head"]["bias"])


def one_example(params, x, factors):
    """A loop in Python, on one row and one position."""
    for i in range(LAYERS):
        kernel, bias = params["layers"]["dense"]["kernel"][i], params["layers"]["dense"]["bias"][i]
        x = tap(f"layers.{i}", x + factors[i] * jnp.tanh(tap(f"layers.{i}.dense", x @ kernel + bias)))
    return tap("head", x @ params["head"]["kernel"] + params["head"]["bias"])


def weights(linear):
    return {"kernel": linear.weight.detach().numpy().T, "bias": linear.bias.detach().numpy()}


def tree(*, reverse=False):
    layers = [weights(layer.dense) for layer in THEIRS.layers]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(layers[::-1] if reverse else layers))
    return {"layers": {"dense": stacked}, "head": weights(THEIRS.head)}


def linen_net(remat):
    return tree(), lambda params, x, factors: LinenNet(remat).apply({"params": params}, x, factors)


def nnx_stack(layer=NnxLayer, loop=by_scan):
    model = NnxStack(layer, loop, nnx.Rngs(0))
    nnx.update(model, tree())
    return model, lambda model, x, factors: model(x, factors)


def nnx_list(layer=NnxRematLayer):
    model = NnxList(layer, nnx.Rngs(0))
    layers = {i: {"dense": weights(layer.dense)} for i, layer in enumerate(THEIRS.layers)}
    nnx.update(model, {"layers": layers, "head": weights(THEIRS.head)})
    return model, lambda model, x, factors: model(x, factors)


PORTS = {
    "linen scan": lambda: linen_net(remat=False),
    "linen scan of remat": lambda: linen_net(remat=True),
    "linen under vmap": lambda: (
        tree(),
        lambda params, x, factors: jax.vmap(lambda x: LinenNet(False).apply({"params": params}, x, factors))(x),
    ),
    "nnx under vmap": lambda: (
        nnx_list(NnxLayer)[0],
        lambda model, x, factors: jax.vmap(lambda x: model(x, factors), in_axes=1, out_axes=1)(x),
    ),
    "function under two vmaps": lambda: (
        tree(),
        jax.vmap(jax.vmap(one_example, in_axes=(None, 0, None)), in_axes=(None, 0, None)),
    ),
    "nnx scan": nnx_stack,
    "nnx scan of a remat method": lambda: nnx_stack(NnxRematLayer),
    "nnx scan of nnx remat": lambda: nnx_stack(loop=by_scan_rematerialised),
    "nnx remat": nnx_list,
    "lax scan": lambda: (tree(), partial(function, body=one_layer)),
    "lax scan backwards": lambda: (tree(reverse=True), partial(function, body=one_layer, reverse=True)),
    "lax scan of checkpoint": lambda: (tree(), partial(function, body=checkpointed_layer)),
}
EXPERT_PORTS = {
    "linen vmap": lambda: (tree(), lambda params, x, factors: LinenExperts().apply({"params": params}, x, factors)),
    "nnx vmap": lambda: nnx_stack(loop=by_vmap),
    "nnx vmap of a remat method": lambda: nnx_stack(NnxRematLayer, loop=by_vmap),
    "vmap": lambda: (tree(), mapped_function),
}
ROWS = {"(call)", "head"} | {f"layers.{i}{name}" for i in range(LAYERS) for name in ("", ".dense")}


def report_of(port, factors):
    model, call = (PORTS | EXPERT_PORTS)[port]()
    theirs = EXPERTS if port in EXPERT_PORTS else THEIRS
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return compare(theirs, model, (X,), call_jax=lambda model, x: call(model, x, factors), checks=CHECK_NAMES)


ports = pytest.mark.parametrize(
    "port",
    usually(
        [*PORTS, *EXPERT_PORTS],
        "linen scan",
        "nnx scan of a remat method",
        "lax scan backwards",
        "function under two vmaps",
        "vmap",
    ),
)


@pytest.mark.first(2)
@ports
def test_each_layer_has_rows_of_its_own(port):
    report = report_of(port, RIGHT)
    assert report.status == "equal", str(report)
    assert {module.jax for module in report.modules} - {""} == ROWS
    assert report.jax_only == []


@pytest.mark.first(2)
@ports
def test_a_bug_in_one_layer_is_told_with_its_number(port):
    report = report_of(port, WRONG)
    layer = "layers.2" if port == "lax scan backwards" else "layers.0"
    assert [(module.jax, module.torch) for module in report.diverging] == [(layer, "layers.0")], str(report)
    assert report.verdict.startswith(f"DIFFERENT: {layer}: torch computes `torch.tanh(self.dense(x))`"), report.verdict
