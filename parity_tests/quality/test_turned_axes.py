"""A relative bias of the wrong sign is torch's transposed: it is wrong all the same, and the attention that adds it is not."""

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

B, N, T, H = 3, 2, 5, 4
D = N * H


class TorchBias(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(2 * T - 1, N)

    def forward(self, x):
        places = torch.arange(T)
        return self.table(places[:, None] - places + T - 1).permute(2, 0, 1)[None] + 0 * x[:1, :1, :1, None]


class TorchAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.qkv, self.out = TorchBias(), torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (N, H)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / H**0.5 + self.bias(x)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(-2))


class Bias(nnx.Module):
    def __init__(self, sign):
        self.sign, self.table = sign, nnx.Embed(2 * T - 1, N, rngs=nnx.Rngs(0))

    def __call__(self, x):
        places = jnp.arange(T)
        ids = self.sign * (places[:, None] - places) + T - 1
        return self.table(ids).transpose(2, 0, 1)[None] + 0 * x[:1, :1, :1, None]


class Attention(nnx.Module):
    def __init__(self, sign):
        rngs = nnx.Rngs(0)
        self.bias, self.qkv, self.out = Bias(sign), nnx.Linear(D, 3 * D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)

    def __call__(self, x):
        q, k, v = (each.reshape(B, T, N, H).swapaxes(1, 2) for each in jnp.split(self.qkv(x), 3, -1))
        weights = jax.nn.softmax(q @ k.mT / H**0.5 + self.bias(x), -1)
        return self.out((weights @ v).swapaxes(1, 2).reshape(B, T, D))


def test_a_relative_bias_of_the_wrong_sign_is_diverging_itself():
    theirs, ours = excite(TorchAttention().eval(), seed=1), Attention(sign=-1)
    ours.bias.table.embedding[...] = jnp.asarray(theirs.bias.table.weight.detach().numpy())
    for mine, its in ((ours.qkv, theirs.qkv), (ours.out, theirs.out)):
        mine.kernel[...], mine.bias[...] = (jnp.asarray(array.detach().numpy().T) for array in (its.weight, its.bias))
    report = compare(theirs, ours, (noise(B, T, D),), checks=("weights", "forward", "local"), tier="A")
    assert [module.jax for module in report.diverging] == ["bias"], str(report)
    assert report.diverging[0].cause.startswith(
        "input of bias.table: jax gives torch's array with axes 0 and 1 exchanged (a transposition) (residual "
    )
