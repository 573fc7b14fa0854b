"""JAX tensors that hold the sum of two of torch's: the one bias of Keras's and Flax's LSTM."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.convert.rules import Family, Join, Part, Rule, gradients_to_torch, to_jax, to_torch
from jaxformer.errors import ConversionError
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.gradients_of_weights import gradients_to_jax
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

IN, H = 3, 4
X = noise(2, 5, IN)
GATES = "ifgo"


class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = torch.nn.LSTM(IN, H, batch_first=True), torch.nn.Linear(H, 2)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


@pytest.fixture(scope="module")
def theirs():
    return excite(Reads().eval(), seed=1)


def ported(theirs, *, apart):
    """One bias: whole, as Keras has it, or gate by gate, as Flax has it."""
    state = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    out = {"kernel": state["out.weight"].T, "bias": state["out.bias"]}
    whole = {
        "kernel": state["lstm.weight_ih_l0"].T,
        "recurrent": state["lstm.weight_hh_l0"].T,
        "bias": state["lstm.bias_ih_l0"] + state["lstm.bias_hh_l0"],
    }
    parts = {
        f"{leaf}_{gate}": part for leaf, it in whole.items() for gate, part in zip(GATES, np.split(it, 4, -1), strict=True)
    }
    return {"cell": parts if apart else whole, "out": out}


def call_jax(p, x, bias=1.0):
    def whole(leaf):
        return p["cell"][leaf] if leaf in p["cell"] else jnp.concatenate([p["cell"][f"{leaf}_{gate}"] for gate in GATES], -1)

    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ whole("kernel") + h @ whole("recurrent") + bias * whole("bias"), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((len(x), H), x.dtype)
    states = jax.lax.scan(step, (zero, zero), x.swapaxes(0, 1))[1].swapaxes(0, 1)
    return states @ p["out"]["kernel"] + p["out"]["bias"]


@pytest.mark.parametrize("apart", [False, True], ids=["whole", "gate by gate"])
def test_one_bias_for_two_is_matched_by_its_value(theirs, apart):
    report = compare(theirs, ported(theirs, apart=apart), (X,), call_jax=call_jax)
    assert report.exit_code == 0, str(report)
    says = "JAX holds torch's lstm.bias_ih_l0 + lstm.bias_hh_l0 added up: each has the gradient of the sum, and weights go"
    assert says in report.stages[0].says


def test_code_that_takes_the_sum_twice_is_different(theirs):
    report = compare(theirs, ported(theirs, apart=False), (X,), call_jax=lambda p, x: call_jax(p, x, bias=2.0))
    assert report.exit_code == 1, str(report)
    assert report.stages[0].status == "equal"


def test_a_gradient_that_is_not_the_sums_is_different(theirs):
    def call(p, x):
        bias = p["cell"]["bias"]
        half = bias / 2 + jax.lax.stop_gradient(bias / 2)
        return call_jax({**p, "cell": {**p["cell"], "bias": half}}, x)

    report = compare(theirs, ported(theirs, apart=False), (X,), call_jax=call)
    assert {stage.name: stage.status for stage in report.stages}["gradients"] == "different", str(report)


RULES = Family(
    "mine",
    {},
    (
        Rule("cell.kernel", "lstm.weight_ih_l0", "transposed"),
        Rule("cell.recurrent", "lstm.weight_hh_l0", "transposed"),
        Rule("cell.bias", "lstm.bias_{part}_l0", join=Join(("ih", "hh"), summed=True)),
        Rule("out.kernel", "out.weight", "transposed"),
        Rule("out.bias", "out.bias"),
    ),
)


def test_a_rule_may_add_and_then_tells_a_bias_that_is_not_the_sum(theirs):
    tree = ported(theirs, apart=False)
    assert compare(theirs, tree, (X,), call_jax=call_jax, rules=RULES).exit_code == 0
    tree["cell"]["bias"] = tree["cell"]["bias"] + 1
    report = compare(theirs, tree, (X,), call_jax=call_jax, rules=RULES)
    assert [stage.status for stage in report.stages[:2]] == ["different", "equal"], str(report)
    assert "bias_ih_l0" in report.verdict


def test_a_sum_goes_one_way_and_its_gradient_both(theirs):
    tree = ported(theirs, apart=False)
    state = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    again = to_jax(state, tree, RULES)
    assert np.array_equal(again["cell"]["bias"], tree["cell"]["bias"])
    with pytest.raises(
        ConversionError, match=r"holds the sum of torch's lstm\.bias_ih_l0 and lstm\.bias_hh_l0, which does not tell them apart"
    ):
        to_torch(tree, RULES)
    sent = gradients_to_torch(tree, RULES, state)
    assert np.array_equal(sent["lstm.bias_ih_l0"], sent["lstm.bias_hh_l0"])
    back = gradients_to_jax(sent, tree, RULES)
    assert np.array_equal(back["cell"]["bias"], tree["cell"]["bias"])
    frozen = {**sent, "lstm.bias_ih_l0": np.zeros_like(sent["lstm.bias_ih_l0"])}
    assert np.array_equal(gradients_to_jax(frozen, tree, RULES)["cell"]["bias"], tree["cell"]["bias"])


def test_terms_of_other_shapes_are_refused_in_one_line():
    rule = Rule("bias", "{part}", join=Join(("a", "b"), summed=True))
    with pytest.raises(ConversionError, match=r"shapes \[3\], \[4\] cannot be added up"):
        to_jax({"a": noise(3), "b": noise(4)}, {"bias": noise(3)}, Family("mine", {}, (rule,)))
    assert Rule("bias_i", "{part}", part=Part(0, of=4), join=Join(("a", "b"), summed=True)).part.of == 4
