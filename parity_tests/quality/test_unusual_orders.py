"""Numbers that are all there, in another order: a port's own way, or its bug."""

import jax
import numpy as np
import pytest
import torch

from jaxformer.convert.layouts import in_usual_order
from jaxformer.convert.rules import Axes
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

C, D, P = 3, 8, 4
X = noise(2, C, 3 * P, 2 * P)


class TorchPatches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = torch.nn.Conv2d(C, D, P, stride=P)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(D, D) for _ in range(3)])

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def call_jax(parameters, x, axes="HWIO", layers=(0, 1, 2), step=1):
    x = jax.lax.conv_general_dilated(
        x, parameters["patch"]["kernel"][::step, ::step], (P, P), "VALID", dimension_numbers=("NCHW", axes, "NCHW")
    )
    x = (x + parameters["patch"]["bias"][:, None, None]).reshape(len(x), D, -1).swapaxes(1, 2)
    for i in layers:
        x = jax.numpy.tanh(x @ parameters["layers"][str(i)]["kernel"] + parameters["layers"][str(i)]["bias"])
    return x


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchPatches().eval(), seed=1)


def ported(theirs, axes=(2, 3, 1, 0), layers=(0, 1, 2), step=1):
    """layers[i] is the number of torch's layer that lies in ours of number i; with a step of -1 the kernel lies backwards."""
    state = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    kernel = state["patch.weight"].transpose(axes)[::step, ::step]
    tree = {"patch": {"kernel": kernel, "bias": state["patch.bias"]}, "layers": {}}
    for i, of in enumerate(layers):
        tree["layers"][str(i)] = {"kernel": state[f"layers.{of}.weight"].T, "bias": state[f"layers.{of}.bias"]}
    return tree


def report_of(theirs, ours, **how):
    call = (lambda parameters, x: call_jax(parameters, x, **how)) if how else call_jax
    return compare(theirs, ours, (X,), call_jax=call, checks=("weights", "forward"), tier="A")


BUGS = {
    "height and width": ({"axes": (3, 2, 1, 0)}, {"axes": "WHIO"}, "patch.weight", "with its axes in another order"),
    "backwards": ({"step": -1}, {"step": -1}, "patch.weight", "backwards along axes 2 and 3, as a flipped kernel"),
    "layers": ({"layers": (0, 2, 1)}, {"layers": (0, 2, 1)}, "layers.1.weight", "what torch has in layers.2.weight"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_lies_in_another_order_is_the_cause_where_the_output_differs(theirs, bug):
    how, _, name, said = BUGS[bug]
    report = report_of(theirs, ported(theirs, **how))
    assert [stage.status for stage in report.stages] == ["different", "equal"], str(report)
    assert name in report.verdict
    assert said in report.verdict
    assert report.diverging == []


@pytest.mark.parametrize("bug", BUGS)
def test_it_is_only_noted_where_the_code_knows_of_it(theirs, bug):
    how, right, name, _ = BUGS[bug]
    report = report_of(theirs, ported(theirs, **how), **right)
    assert report.status == "equal", str(report)
    what = "layer" if bug == "layers" else "order"
    assert f"another {what} than torch's: {name.removesuffix('weight')}" in str(report)


def test_the_usual_order_is_not_talked_of(theirs):
    report = report_of(theirs, ported(theirs))
    assert report.status == "equal", str(report)
    assert "another" not in report.stages[0].says


H, N = 6, 2


class Rotating(torch.nn.Module):
    """Queries and keys, of which row i of a head turns with row i + H / 2."""

    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(D, N * H), torch.nn.Linear(D, N * H)

    def forward(self, x):
        q, k = (rotated(side(x).unflatten(-1, (N, H)).transpose(1, 2), torch) for side in (self.q, self.k))
        return q @ k.mT


def rotated(x, numpy, *, pairs=False):
    even, odd = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., : H // 2], x[..., H // 2 :])
    angle = numpy.arange(x.shape[-2])[:, None] * 0.5 ** numpy.arange(H // 2)
    both = even * numpy.cos(angle) - odd * numpy.sin(angle), even * numpy.sin(angle) + odd * numpy.cos(angle)
    return numpy.stack(both, -1).reshape(x.shape)


def in_pairs(torch_model, *, turned):
    """torch's tensors with the rows of each head in pairs."""
    state = {name: tensor.detach().numpy() for name, tensor in torch_model.named_parameters()}
    paired = {name: array.reshape(N, 2, H // 2, -1).swapaxes(1, 2).reshape(array.shape) for name, array in state.items()}
    return {name: array.T if turned else array for name, array in paired.items()}


def jax_rotating(*, turned, pairs=True, scale=1.0, tap=lambda name, x: x):
    def call_jax(p, x):
        q, k = (tap(it, x @ (p[f"{it}.weight"] if turned else p[f"{it}.weight"].T) + p[f"{it}.bias"]) for it in "qk")
        q, k = (rotated(each.reshape(*x.shape[:2], N, H).swapaxes(1, 2), jax.numpy, pairs=pairs) for each in (q, k))
        return scale * (q @ k.swapaxes(-1, -2))

    return call_jax


@pytest.mark.parametrize("turned", [False, True], ids=["kernels as torch's", "transposed"])
@pytest.mark.parametrize("pairs", [True, False], ids=["pairs are turned", "halves are turned"])
def test_rows_of_rotary_heads_may_lie_in_pairs(pairs, turned):
    torch_model = excite(Rotating().eval(), seed=2)
    tree, call_jax = in_pairs(torch_model, turned=turned), jax_rotating(turned=turned, pairs=pairs)
    report = compare(torch_model, tree, (noise(3, 5, D),), call_jax=call_jax, checks=("weights", "forward"), tier="A")
    says = report.stages[0].says
    assert "the rows of each of 2 heads in the order 0, 3, 1, 4, ... of torch's" in says
    assert [stage.status for stage in report.stages] == ["equal" if pairs else "different", "equal"], str(report)
    if pairs:
        assert f'k.weight (as a rule, "(2 2 h) d -> {"d (2 h 2)" if turned else "(2 h 2) d"}")' in says


@pytest.mark.parametrize("turned", [False, True], ids=["kernels as torch's", "transposed"])
def test_rows_in_pairs_are_no_difference_beside_another_one(turned):
    torch_model = excite(Rotating().eval(), seed=2)
    call_jax = jax_rotating(turned=turned, scale=1.25, tap=tap)
    report = compare(torch_model, in_pairs(torch_model, turned=turned), (noise(3, 5, D),), call_jax=call_jax, tier="A")
    assert [each.jax for each in report.diverging] == ["(call)"], str(report)
    assert "by 1.25" in report.verdict


ORDERS = {
    "a kernel of flax's": (Axes((8, 3, 4, 4), (8, 3, 4, 4), (2, 3, 1, 0), (4, 4, 3, 8)), (2, 3, 1, 0)),
    "height and width exchanged": (Axes((8, 3, 4, 4), (8, 3, 4, 4), (3, 2, 1, 0), (4, 4, 3, 8)), (2, 3, 1, 0)),
    "of other sizes": (Axes((8, 3, 4, 5), (8, 3, 4, 5), (3, 2, 1, 0), (5, 4, 3, 8)), None),
    "heads of flax's": (Axes((12, 8), (3, 4, 8), (2, 0, 1), (8, 3, 4)), (2, 0, 1)),
    "heads and their width exchanged": (Axes((9, 8), (3, 3, 8), (2, 1, 0), (8, 3, 3)), (2, 0, 1)),
    "experts": (Axes((5, 8, 7), (5, 8, 7), (0, 2, 1), (5, 7, 8)), (0, 2, 1)),
    "rotary pairs": (Axes((12, 8), (2, 2, 3, 8), (0, 2, 1, 3), (12, 8)), (0, 1, 2, 3)),
    "rotary pairs, transposed": (Axes((12, 8), (2, 2, 3, 8), (3, 0, 2, 1), (8, 12)), (3, 0, 1, 2)),
    "a picture of one row": (Axes((8, 3, 1, 4), (8, 3, 1, 4), (3, 2, 1, 0), (4, 1, 3, 8)), (3, 2, 1, 0)),
}


@pytest.mark.parametrize("case", ORDERS)
def test_what_is_usual(case):
    axes, order = ORDERS[case]
    usual = in_usual_order(axes)
    assert (usual and usual.order) == order
    assert usual is None or np.array_equal(usual.to_jax(np.zeros(axes.torch)), np.zeros(axes.jax))
