"""Gradients at zero, where torch's functions give 0 and code that is written out gives NaN."""

import jax
import jax.numpy as jnp
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

X = noise(2, 7, 6, seed=1)
X[0, 2] = 0


class Normed(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.up, self.out = how, torch.nn.Linear(6, 5, bias=False), torch.nn.Linear(5, 4)

    def forward(self, x):
        y = self.up(x)
        if self.how == "norm":
            return self.out(y / (y.norm(dim=-1, keepdim=True) + 1e-6))
        if self.how == "where":
            squares = y * y
            return self.out(torch.where(squares > 0, torch.where(squares > 0, squares, 1.0).sqrt(), 0.0))
        return self.out((-torch.cdist(y, y)).softmax(-1) @ y)


def root(squares, mended):
    safe = jnp.where(squares > 0, squares, 1.0) if mended else squares
    return jnp.where(squares > 0, jnp.sqrt(safe), 0.0)


def ported(how, mended, weights, x):
    y = x @ weights["up.weight"].T
    if how == "norm":
        y = y / (root((y * y).sum(-1, keepdims=True), mended) + 1e-6)
    elif how == "where":
        y = root(y * y, mended)
    else:
        far = root(((y[:, :, None] - y[:, None]) ** 2).sum(-1), mended)
        y = jax.nn.softmax(-far, -1) @ y
    return y @ weights["out.weight"].T + weights["out.bias"]


def reported(how, port):
    theirs = excite(Normed(how).eval(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}
    return compare(theirs, weights, (X,), call_jax=port, tier="A")


CAUSES = {
    "norm": ("gradients.at_zero", "y.norm(dim=-1, keepdim=True)"),
    "where": ("gradients.unguarded", "torch.where(squares > 0, squares, 1.0)"),
    "distances": ("gradients.at_zero", "torch.cdist(y, y)"),
}


@pytest.mark.parametrize("how", usually(CAUSES, "norm"))
def test_nan_is_traced_to_the_operation(how):
    report = reported(how, lambda weights, x: ported(how, False, weights, x))
    (module,) = report.diverging
    change, code = CAUSES[how]
    assert (module.causes[0].change, code in module.causes[0].targets[0].label) == (change, True), module.cause
    assert reported(how, lambda weights, x: ported(how, True, weights, x)).status == "equal"


def test_nan_from_elsewhere_is_not_the_norms():
    """Of all rows, as a gradient of NaN in the mean of the logits has it."""

    def port(weights, x):
        y = ported("norm", True, weights, x)
        return y + 0 * jnp.sqrt(jnp.sum(y - jax.lax.stop_gradient(y)) ** 2)

    (module,) = reported("norm", port).diverging
    assert not any(cause.change == "gradients.at_zero" and cause.certainty == "exact" for cause in module.causes), module.cause
