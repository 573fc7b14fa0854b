"""float32 and bfloat16: how far a port's output is off, in units of torch's own rounding error."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.attribute import low_precision
from jaxformer.parity.attribute.low_precision import divergence
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.metrics import rounding_ratio
from jaxformer.parity.numerics.products import Product, jax_product, product, torch_product

VOCAB, WIDTH = 17, 12
IDS = np.random.default_rng(0).integers(0, VOCAB, (5, 9))


class Tagger(torch.nn.Module):
    """Ids to logits over the same vocabulary, through one softmax."""

    def __init__(self):
        super().__init__()
        self.table, self.mix = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = torch.nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.table(ids)
        x = (self.mix(x) @ x.mT * 0.5).softmax(-1) @ x + x
        return self.head(x)


def call_jax(params, ids, inner=lambda x: x):
    x = params["table"][ids]
    mixed = inner(x @ params["mix"])
    return inner(jax.nn.softmax(mixed @ x.mT * 0.5) @ x + x) @ params["head"]


@pytest.fixture(scope="module")
def sides():
    torch.manual_seed(0)
    model = Tagger()
    weights = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in model.state_dict().items()}
    turned = {name: weights[f"{name}.weight"].T for name in ("mix", "head")}
    return model, {"table": weights["table.weight"], **turned}, (IDS,)


def stages(sides, call=call_jax):
    report = compare(*sides, call_jax=call, tier="C", checks=("forward",))
    assert report.exit_code != 2, report.traceback
    return {stage.name: stage for stage in report.stages}, report


def test_the_report_gives_r_of_each_run_and_the_divergence_of_the_next_token(sides):
    found, report = stages(sides)
    assert re.search(
        r"; R = \d\.\d\d compiled; KL of the next token \de-1\d, torch's|R = .* compiled; KL", found["float32"].says
    )
    ratios = re.search(r"R = ([\d.]+) compiled, ([\d.]+) with every rounding kept; KL", found["bfloat16"].says)
    assert ratios, found["bfloat16"].says
    assert ratios[1] != ratios[2], "XLA left out no rounding, or both runs were compiled alike"
    assert all(0.3 < float(ratio) < 2 for ratio in ratios.groups()), found["bfloat16"].says
    assert report.environment["jax float32 product"].startswith("float32 (")
    assert report.environment["torch float32 product"].startswith("float32 (")


def test_a_port_that_rounds_more_than_torch_is_different_in_bfloat16_alone(sides):
    def coarse(x):
        return x if x.dtype != jnp.bfloat16 else jax.lax.reduce_precision(x, 8, 4)

    found, _ = stages(sides, lambda params, ids: call_jax(params, ids, coarse))
    assert [found[name].status for name in ("forward", "float32", "bfloat16")] == ["equal", "equal", "different"]
    assert re.match(r"output in bfloat16, compiled: error \S+ against torch's \S+, R \d", found["bfloat16"].says)


def test_products_below_float32_are_judged_by_bfloat16s_error(sides, monkeypatch):
    monkeypatch.setattr(low_precision, "jax_product", lambda: Product(3e-4))
    found, _ = stages(sides)
    ratio = re.search(r"([\d.]+) with the device's own products", found["bfloat16"].says)
    assert ratio
    assert float(ratio[1]) < 0.01

    def wrong_in_float32(params, ids):
        own = params["head"].dtype == jnp.float32 and jax.config.values["jax_default_matmul_precision"] is None
        return call_jax(params, ids) * (1.05 if own else 1)

    found, _ = stages(sides, wrong_in_float32)
    assert found["float32"].status == "equal"
    assert "with the device's own products: error" in found["bfloat16"].says


def rounded(bits):
    """A product of factors with that many bits after the leading one."""

    def multiply(x, y):
        return np.matmul(*(np.asarray(jax.lax.reduce_precision(factor, 8, bits), np.float64) for factor in (x, y)))

    return multiply


@pytest.mark.parametrize(
    ("bits", "precision"), [(23, "float32"), (16, "bfloat16 in three parts"), (10, "TF32"), (7, "bfloat16")]
)
def test_a_product_tells_what_its_factors_were_rounded_to(bits, precision):
    assert product(rounded(bits)).precision == precision


def test_both_frameworks_multiply_in_float32_here():
    assert jax_product().is_float32
    assert torch_product().is_float32


def test_r_is_the_error_over_torchs():
    truth = np.array([1.0, 2.0, -1e9])
    assert rounding_ratio(truth + np.array([3e-3, 0, 64]), truth + np.array([1e-3, 0, 0]), truth) == pytest.approx(3)
    assert rounding_ratio(truth, truth, truth) == 1
    assert rounding_ratio(truth + 1, truth, truth) == np.inf


def test_divergence_of_two_tokens():
    p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    expected = 0.25 * np.log(0.5) + 0.75 * np.log(1.5)
    assert divergence(np.log(p) + 3, np.log(q) - 1) == pytest.approx(expected)
    barred = np.array([0.0, -np.inf])
    assert divergence(barred, barred) == 0
    assert divergence(np.log(p), barred) == np.inf
