"""The registry of checks: each check runs by itself with what it says it needs, and a new one takes a line."""

import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.attribute import checks
from jaxformer.parity.attribute.checks import CHECK_NAMES, Check
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.compare import compare
from jaxformer.parity.recording import record_torch
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.report import Report

RULES = Family("linear", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


class Doubled(nnx.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


def compared(kind: type[nnx.Linear], names: tuple[str, ...]) -> Report:
    torch.manual_seed(0)
    theirs, ours = torch.nn.Linear(4, 5), kind(4, 5, rngs=nnx.Rngs(0))
    ours.kernel[...], ours.bias[...] = theirs.weight.detach().numpy().T, theirs.bias.detach().numpy()
    return compare(theirs, ours, (X,), rules=RULES, checks=names)


@pytest.fixture(scope="module")
def together() -> dict[str, dict[str, Stage]]:
    kinds = {"equal": nnx.Linear, "different": Doubled}
    return {name: {stage.name: stage for stage in compared(kind, CHECK_NAMES).stages} for name, kind in kinds.items()}


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_a_check_needs_no_other_check(together, name):
    for status, kind in (("equal", nnx.Linear), ("different", Doubled)):
        assert compared(kind, (name,)).stages[0] == together[status][name]
    assert together["different"][name].status == ("equal" if name in ("weights", "sensitivity") else "different")


def test_torch_is_asked_for_what_is_needed_alone():
    found = {
        name: record_torch(torch.nn.Linear(4, 5), (X,), checks=(name,)) for name in ("forward", "gradients", "sensitivity")
    }
    assert [name for name, reference in found.items() if reference.gradients] == ["gradients"]
    assert [name for name, reference in found.items() if reference.not_covered is not None] == ["sensitivity"]


def test_a_new_check_is_a_line(monkeypatch):
    def largest(comparison: Comparison) -> Result:
        size = np.abs(comparison.reference.gradients["weight"]).max()
        return Result(Stage("largest", "equal" if size else "different", f"{size:.0e}"), more={"taps": ["x"]})

    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, Check("largest", largest, frozenset({"gradients"}))))
    monkeypatch.setattr(checks, "CHECK_NAMES", (*CHECK_NAMES, "largest"))
    report = compared(nnx.Linear, ("weights", "largest"))
    assert [stage.name for stage in report.stages] == ["weights", "float32", "largest"]
    assert report.taps == ["x"]
    assert report.exit_code == 0
