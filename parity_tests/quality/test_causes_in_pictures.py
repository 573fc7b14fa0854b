"""Causes around convolutions: their dilation and weight norms, pools, resizing, reshapes for transposes; and which arrays
attention is given."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax
from torch import nn
from torch.nn import functional

import jaxformer
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, C, ROWS, COLUMNS, MID, D = 2, 3, 6, 8, 4, 6
X = noise(B, C, ROWS, COLUMNS, seed=1)


class Theirs(nn.Module):
    """A picture's rows, as a sequence that attends to itself."""

    def __init__(self):
        super().__init__()
        self.stem, self.past = nn.Conv2d(C, MID, 3, padding=1), nn.utils.parametrizations.weight_norm(nn.Conv1d(MID, D, 2))
        self.places, self.attend = nn.Parameter(torch.zeros(COLUMNS // 2, D)), nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x):
        x = functional.max_pool2d(self.stem(x) - 2, 3, 2, 1)
        x = functional.interpolate(x, scale_factor=(1 / 3, 1), mode="nearest").squeeze(2)
        x = self.past(functional.pad(x, (1, 0))).mT
        placed = x + self.places
        return x + self.attend(placed, placed, x, need_weights=False)[0]


def ours(params, x, bug):
    rows = x.reshape(B, ROWS, COLUMNS, C) if bug == "reshape" else x.transpose(0, 2, 3, 1)
    x = lax.conv_general_dilated(
        rows, params["stem.weight"].transpose(2, 3, 1, 0), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jaxformer.tap("stem", x + params["stem.bias"]) - 2
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=0 if bug == "pool" else -jnp.inf)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
    x = x[:, 1] if bug == "resize" else x[:, 0]
    v, g = params["past.parametrizations.weight.original1"], params["past.parametrizations.weight.original0"]
    norm = jnp.sqrt((v**2).sum((0, 2) if bug == "norm of columns" else (1, 2), keepdims=True))
    kernel = g * v / (1 if bug == "weight norm" else norm)
    dilation = 3 if bug == "dilation" else 1
    x = lax.conv_general_dilated(
        x, kernel.transpose(2, 1, 0), (1,), [(dilation, 0)], rhs_dilation=(dilation,), dimension_numbers=("NHC", "HIO", "NHC")
    )
    x = jaxformer.tap("past", x + params["past.bias"])
    placed = x + params["places"]
    weights, biases = (jnp.split(params[f"attend.in_proj_{name}"], 3) for name in ("weight", "bias"))
    given = placed, (x if bug == "keys" else placed), (placed if bug == "values" else x)
    q, k, v = ((y @ w.T + b).reshape(*y.shape[:2], 2, -1) for y, w, b in zip(given, weights, biases, strict=True))
    weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k) * (D // 2) ** -0.5, -1)
    y = jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(x.shape)
    return x + jaxformer.tap("attend", y @ params["attend.out_proj.weight"].T + params["attend.out_proj.bias"])


CAUSES = {
    "reshape": "jax reshapes its input to channels last where it has to transpose it",
    "pool": "jax pads with 0",
    "resize": "jax resizes by nearest-exact",
    "weight norm": "jax does not divide by the norm",
    "norm of columns": "jax past.parametrizations.weight.0.dim 1",
    "dilation": "jax has dilation 3, and pads for it in front",
    "keys": "jax passes its third array for its second too",
    "values": "jax passes its first array for its third too",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Theirs().eval(), seed=2)


@pytest.mark.parametrize("bug", ["", *usually(CAUSES, "reshape", "pool", "dilation", "keys")])
def test_a_picture_in_rows(theirs, bug):
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    checks = ("forward", "local")
    report = compare(theirs, params, (X,), call_jax=lambda params, x: ours(params, x, bug), checks=checks, tier="A")
    assert report.exit_code == bool(bug), str(report)
    assert CAUSES.get(bug, "") in str(report), str(report)


def test_a_gain_that_does_not_fit_is_refused():
    """torch reads beyond it."""
    weight, gain = torch.ones(4, 3, 2).double(), torch.ones(4, 1, 1).double()
    with torch_float64(), pytest.raises(ValueError, match="does not fit axis 2"):
        torch._weight_norm(weight, gain, 2)
