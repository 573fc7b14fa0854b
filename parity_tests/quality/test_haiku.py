"""Haiku's modules are seen by themselves, by the names of their parameters."""

import haiku as hk
import jax
import numpy as np
import pytest
from torch import nn

import jaxformer as jf
from jaxformer.parity.report.report import Report

pytestmark = pytest.mark.foreign

D, FF, LAYERS = 6, 10, 2
X = np.random.default_rng(0).standard_normal((3, D)).astype(np.float32)


class TorchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, FF), nn.Linear(FF, D)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Block(hk.Module):
    """A module with its layers in a method of its own, whose name is part of theirs."""

    def __init__(self, epsilon: float, name: str):
        super().__init__(name)
        self.norm, self.down = hk.LayerNorm(-1, True, True, eps=epsilon), hk.Linear(D, name="down")

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.opened(x), approximate=False))

    def opened(self, x):
        return hk.Linear(FF, name="up")(self.norm(x))


def report_of(epsilon: float = 1e-5) -> Report:
    theirs = jf.excite(nn.Sequential(*(TorchBlock() for _ in range(LAYERS))).eval(), seed=1)
    held = {name: leaf.numpy() for name, leaf in theirs.state_dict().items()}

    def run(x):
        for i in range(LAYERS):
            x = Block(epsilon, f"block_{i}")(x)
        return x

    ours = hk.without_apply_rng(hk.transform(run))
    params = {}
    for i in range(LAYERS):
        for path, name in (("block_{}/~/down", "down"), ("block_{}/~opened/up", "up")):
            params[path.format(i)] = {"w": held[f"{i}.{name}.weight"].T, "b": held[f"{i}.{name}.bias"]}
        params[f"block_{i}/~/layer_norm"] = {"scale": held[f"{i}.norm.weight"], "offset": held[f"{i}.norm.bias"]}
    return jf.compare(theirs, params, (X,), call_jax=ours.apply, tier="A")


def test_every_module_is_compared():
    report = report_of()
    assert report.status == "equal", str(report)
    rows = {row.jax for row in report.modules}
    assert rows >= {f"block_{i}{name}" for i in range(LAYERS) for name in ("", ".layer_norm", ".~opened.up", ".down")}


def test_a_module_is_blamed_with_its_cause():
    assert report_of(epsilon=1e-3).verdict.startswith("DIFFERENT: block_0.layer_norm: torch epsilon 1e-05; jax epsilon 0.001")
