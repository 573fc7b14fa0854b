"""Layers under Linen's `scan` are called by one path, which no module of torch's is."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen

from jaxformer.parity.compare import compare
from jaxformer.parity.judge.checks import CHECK_NAMES
from jaxformer.parity.probe.parameters import excite
from jaxformer.parity.report.report import Report

LAYERS, WIDTH, OUT = 3, 6, 5
X = np.random.default_rng(0).standard_normal((2, 4, WIDTH)).astype(np.float32)


class TorchLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.dense(x))


class TorchNet(torch.nn.Module):
    """A container that holds the layers and nothing else."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = torch.nn.Sequential(*(TorchLayer() for _ in range(LAYERS))), torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        return self.head(self.layers(x))


class Layer(linen.Module):
    factor: float

    @linen.compact
    def __call__(self, x, _):
        return x + self.factor * jnp.tanh(linen.Dense(WIDTH, name="dense")(x)), None


class Net(linen.Module):
    factor: float

    @linen.compact
    def __call__(self, x):
        scanned = linen.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return linen.Dense(OUT, name="head")(scanned(self.factor, name="layers")(x, None)[0])


def weights_of(layer: torch.nn.Linear) -> dict[str, np.ndarray]:
    return {"kernel": layer.weight.detach().numpy().T, "bias": layer.bias.detach().numpy()}


def report_of(factor: float) -> Report:
    theirs = excite(TorchNet(), seed=0)
    dense = jax.tree.map(lambda *leaves: np.stack(leaves), *(weights_of(layer.dense) for layer in theirs.layers))
    tree = {"layers": {"dense": dense}, "head": weights_of(theirs.head)}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return compare(theirs, tree, (X,), call_jax=lambda tree, x: Net(factor).apply({"params": tree}, x), checks=CHECK_NAMES)


def test_a_right_port_is_equal_and_its_layers_are_named_as_not_compared():
    report = report_of(1.0)
    assert report.status == "equal", str(report)
    assert {module.jax for module in report.modules} == {"(call)", "", "head"}
    assert {"layers", "layers (call 1)", "layers.dense (call 2)"} <= set(report.jax_only)
    assert {"layers", "layers.0", "layers.2.dense"} <= set(report.torch_only)


def test_a_bug_in_a_layer_is_what_is_done_in_the_model():
    report = report_of(1.1)
    assert [module.jax for module in report.diverging] == [""]
    assert report.verdict.startswith("DIFFERENT: the model: input of head: relL2 ")
