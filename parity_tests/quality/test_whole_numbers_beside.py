"""Integers that a layer is given beside its array: a mask in jax and positions in torch are two things, though alike in
shape.
"""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = pytest.mark.foreign

B, T, D, VOCAB = 3, 5, 4, 7
IDS = np.random.default_rng(0).integers(0, VOCAB, (B, T))
RULES = Family("toy", {}, (Rule("kernel", "weight", "transposed"), Rule("embedding", "weight")))


class TorchLayer(torch.nn.Module):
    """A layer that is given positions, as OPT's in transformers 4.46, and has no use for them."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(D, D, bias=False)

    def forward(self, x, positions):
        return x + self.linear(x).tanh()


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(VOCAB, D)
        self.layers = torch.nn.ModuleList([TorchLayer() for _ in range(2)])

    def forward(self, ids):
        x, positions = self.table(ids), torch.arange(T).expand(B, T)
        for layer in self.layers:
            x = layer(x, positions)
        return x


class Layer(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(D, D, use_bias=False, rngs=nnx.Rngs(0))

    def __call__(self, x, mask):
        return x + jnp.where(mask[..., None] > 0, jnp.tanh(self.linear(x)), 0)


class Port(nnx.Module):
    def __init__(self, more, masked):
        self.table, self.layers = nnx.Embed(VOCAB, D, rngs=nnx.Rngs(0)), nnx.List([Layer() for _ in range(2)])
        self.more, self.masked = more, masked

    def __call__(self, ids):
        x, mask = self.table((ids + self.more) % VOCAB), jnp.ones((B, T), int).at[:, : self.masked].set(0)
        for layer in self.layers:
            x = layer(x, mask)
        return x


@pytest.mark.parametrize(
    ("more", "masked", "wrong"),
    [(0, 0, []), (1, 0, ["the model"]), (0, 2, ["layers.0", "layers.1"])],
    ids=["right", "rows", "mask"],
)
def test_only_what_is_wrong_is_named(more, masked, wrong):
    theirs = excite(Torch().eval(), seed=1)
    report = compare(theirs, Port(more, masked), (IDS,), rules=RULES, tier="A", checks=("forward", "local"))
    assert report.status == ("different" if wrong else "equal"), str(report)
    assert [module.torch for module in report.diverging] == wrong, str(report)
