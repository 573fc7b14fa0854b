"""Calls of torch's functions that name their arguments are those that give them by position."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose.calls import bound
from jaxformer.parity.probe import excite
from parity_tests.support.searches import cause_between

pytestmark = pytest.mark.foreign
D, T = 8, 7
x, y, z = (torch.randn(3, T, D, generator=torch.Generator().manual_seed(i)) for i in range(3))
mask = torch.ones(T, T, dtype=torch.bool).tril()
kernel, ids = torch.randn(5, T, 3), torch.arange(6)

CALLS = {
    "attention": (functional.scaled_dot_product_attention, {"query": x, "key": y, "value": z, "attn_mask": mask}, 3),
    "cat": (torch.cat, {"tensors": (x, y), "dim": -1}, 1),
    "stack": (torch.stack, {"dim": 1, "tensors": [x, y]}, 1),
    "linear": (functional.linear, {"input": x, "weight": y[0], "bias": y[0, :, 0]}, 2),
    "conv1d": (functional.conv1d, {"input": x, "weight": kernel, "padding": 1}, 2),
    "layer_norm": (functional.layer_norm, {"input": x, "normalized_shape": (D,), "eps": 1e-3}, 2),
    "softmax of functional": (functional.softmax, {"input": x, "dim": 1}, 1),
    "softmax": (torch.softmax, {"input": x, "dim": 1}, 2),
    "pad": (functional.pad, {"input": x, "pad": (1, 2), "value": 0.5}, 2),
    "embedding": (functional.embedding, {"weight": x[0], "input": ids}, 2),
    "matmul": (torch.matmul, {"other": y.mT, "input": x}, 2),
    "matmul into an array": (torch.matmul, {"input": x, "other": y.mT, "out": torch.empty(3, T, T)}, 2),
    "where": (torch.where, {"condition": x > 0, "input": y, "other": z}, 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_required_is_given_by_position(name):
    function, named, count = CALLS[name]
    args, kwargs = bound(function, (), named)
    assert len(args) == count
    assert len(args) + len(kwargs) == len(named)
    torch.testing.assert_close(function(*args, **kwargs), function(**named), rtol=0, atol=0)


def test_beside_arguments_by_position_only_tensors_move():
    assert bound(torch.softmax, (x,), {"dim": -1}) == ((x,), {"dim": -1})
    assert bound(functional.linear, (x,), {"weight": y, "bias": None}) == ((x, y), {"bias": None})
    assert bound(torch.Tensor.matmul, (x,), {"other": y}) == ((x, y), {})


def test_what_has_no_schema_stays():
    assert bound(lambda *args, **kwargs: 0, (), {"q": x}) == ((), {"q": x})


class Named(torch.nn.Module):
    """Causal attention whose every argument has its name."""

    def __init__(self):
        super().__init__()
        self.query, self.key = torch.nn.Parameter(torch.randn(D, D)), torch.nn.Parameter(torch.randn(D, D))

    def forward(self, x):
        query, key = functional.linear(input=x, weight=self.query), functional.linear(input=x, weight=self.key)
        return functional.scaled_dot_product_attention(query=query, key=key, value=x, is_causal=True)


def attention(weights, x, bug):
    scores = (x @ weights["query"].T) @ (x @ weights["key"].T).swapaxes(1, 2) / (D if bug == "scale" else D**0.5)
    seen = jnp.tril(jnp.ones((T, T), bool), 1 if bug == "one key more" else 0)
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ x


BUGS = {
    "scale": "jax has scale 0.125 = 1/8 for 0.353553391 there",
    "one key more": "jax lets every query see one key more ahead",
}


@pytest.mark.parametrize("bug", BUGS)
def test_causes(bug):
    model = excite(Named(), seed=0)
    weights = {name: jnp.asarray(array.detach().numpy()) for name, array in model.named_parameters()}
    report = compare(
        model, weights, (np.asarray(x),), call_jax=partial(attention, bug=bug), checks=("weights", "forward"), tier="A"
    )
    assert "F.scaled" in report.verdict or "functional.scaled_dot_product_attention" in report.verdict
    assert BUGS[bug] in report.verdict


class Into(torch.nn.Module):
    """A product and a sum that are written into an array; the code does not read what the calls return."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(D, D))

    def forward(self, x):
        out = torch.empty_like(x)
        torch.matmul(x, self.weight.detach(), out=out)
        torch.add(input=out, other=x, alpha=0.5, out=out)
        return out * 3


class IntoWithLess(Into):
    def forward(self, x):
        return (x @ self.weight + 0.25 * x) * 3


def test_what_is_written_into_an_array_counts_as_read():
    cause = cause_between(Into(), IntoWithLess(), x.numpy())
    assert "alpha=0.5, out=out)` (test_bound.py:104); jax has alpha 0.25 for 0.5 there" in cause
