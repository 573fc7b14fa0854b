"""The table of ports that others wrote; comparing them needs an environment of its own."""

import sys
import types

import numpy as np
import pytest

from benchmarks import field
from benchmarks.field_kinds import KINDS
from jaxformer.errors import InputError, ParityError
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.report import Report

NAMED = {"t5", "albert", "whisper", "bart", "marian", "blenderbot"}


def test_there_are_many_kinds_and_what_differs_says_why():
    names = {kind.name for kind in KINDS}
    assert len(names) >= 15
    assert names >= NAMED
    for kind in KINDS:
        assert bool(kind.differs) == bool(kind.because), kind.model


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model)
def test_every_kind_has_inputs_and_their_names(kind):
    inputs, names = field.given(kind)
    assert len(inputs) == len(names)
    assert all(len(array) == field.BATCH and array.dtype in (np.int32, np.float32) for array in inputs)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (types.SimpleNamespace(__version__="5.1.0"), "transformers is 5.1.0, and its Flax models ended with 4.46; see "),
        (None, "transformers is not installed; see "),
    ],
)
def test_without_flax_models_one_line_says_what_to_do(module, says, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", module)
    with pytest.raises(InputError) as refusal:
        field.main(["--only", "t5"])
    assert str(refusal.value).startswith(says)
    assert str(refusal.value).endswith(field.HOW)
    assert "pip install" in str(field.__doc__)


def test_a_name_that_is_none_is_refused():
    with pytest.raises(InputError, match="only = t6 is not one of albert, "):
        field.main(["--only", "t6"])


@pytest.mark.parametrize(
    ("differs", "status", "says", "expected"),
    [
        ("", "equal", "all", True),
        ("", "different", "the bias", False),
        ("the bias", "different", "the bias", True),
        ("the bias", "different", "the gain", False),
        ("the bias", "equal", "all", False),
        ("the bias", "failed", "the bias", False),
    ],
)
def test_a_verdict_that_is_not_expected_is_an_error(differs, status, says, expected, monkeypatch, capsys):
    report = Report(tier="A", tolerance=1e-13, stages=[Stage("forward", status, says)])
    monkeypatch.setattr(field, "KINDS", [field.Kind("toy", "Toy", {}, differs=differs, because=differs)])
    monkeypatch.setattr(field, "flax_release", lambda: None)
    monkeypatch.setattr(field, "compared", lambda *_: report)
    if expected:
        field.main([])
    else:
        with pytest.raises(ParityError, match="unexpected verdicts: Toy"):
            field.main([])
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("ok    " if expected else "WRONG ")
    assert line.endswith(f" s  {report.verdict}")
    assert last == f"{int(expected)}/1 as expected"
