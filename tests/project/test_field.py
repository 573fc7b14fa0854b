"""The field's own machinery: bugs are planted in source, and what is said of them is counted. Its ports need other packages."""

import importlib
from dataclasses import replace

import pytest

from benchmarks.field_bugs import BUGS, Bug, read
from benchmarks.field_kinds import KINDS
from benchmarks.field_outcome import outcome, totals
from benchmarks.field_source import planted, replaced
from jaxformer.errors import InputError
from jaxformer.parity.diagnose.diagnosis import Diagnosis, plain
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.metrics import EQUAL, Error
from jaxformer.parity.report.data import Module, Stage
from jaxformer.parity.report.report import Report

BUG = Bug("llama", "base", "table", "a", "b", "layers.*.attn", "rotary.base base=2 *")


def test_every_bug_is_of_a_clean_port_and_changes_something():
    clean = {kind.name for kind in KINDS if not kind.differs}
    assert {bug.port for bug in BUGS} <= clean
    assert all(bug.old != bug.new for bug in BUGS)
    assert len({bug.title for bug in BUGS}) == len(BUGS) >= 120


def test_a_table_without_a_cause_is_refused():
    with pytest.raises(InputError, match="the bug that begins with 'base' is not of the form"):
        read("== llama\n\nbase\n  in      table\n- a\n+ b\n  blames  model")


@pytest.mark.parametrize(
    ("where", "old", "says"), [("one", "x", "one has 'x' 2 times, wanted once"), ("three", "x", "the source has no three")]
)
def test_a_text_that_is_not_there_once_is_refused(where, old, says):
    with pytest.raises(InputError, match=says):
        replaced("def one(x):\n    return x\n\n\ndef two(x):\n    return x\n", where, old, "y")


def test_a_planted_bug_is_seen_by_all_of_a_package_and_taken_out_again():
    home, user = (
        importlib.import_module("jaxformer.parity.diagnose.by_arrays.values"),
        importlib.import_module("jaxformer.parity.diagnose.by_arrays.gradients"),
    )
    before = home.factor_between
    with planted(home.__name__, "factor_between", "or 1.0", "or 2.0"):
        assert user.factor_between is home.factor_between is not before
    assert user.factor_between is home.factor_between is before


def module(torch: str, *changes: Change) -> Module:
    found = Diagnosis(tuple(plain(change, own=1, base=2) for change in changes))
    return Module(torch, torch, EQUAL, Error(1.0, 1.0), "output", diverging=True, cause=str(found), causes=found.causes())


def report(*modules: Module, status="different") -> Report:
    return Report("A", 1e-13, stages=[Stage("forward", status, "")], modules=list(modules))


BASE, EPSILON = Change("rotary.base", "base {base}", "base {own}"), Change("operations.epsilon", "eps {base}", "eps {own}")


def test_what_is_said_of_a_bug_is_counted():
    told = outcome(BUG, report(module("layers.0.attn", BASE), module("layers.1.attn", EPSILON, BASE)), 1.0)
    assert (told.noticed, told.is_named, told.fails) == (True, True, [])
    elsewhere = outcome(BUG, report(module("layers.0.mlp")), 1.0)
    assert elsewhere.fails == ["MODULE", "INNOCENT layers.0.mlp", "no cause"]
    other = outcome(BUG, report(module("layers.0.attn", BASE), module("layers.1.attn", EPSILON)), 1.0)
    assert other.fails == ["WRONG CAUSE ['torch eps 1; jax eps 2']"]
    half = outcome(BUG, report(module("layers.0.attn", BASE), module("layers.1.attn")), 1.0)
    assert half.fails == ["no cause layers.1.attn"]
    unseen = outcome(BUG, report(status="equal"), 1.0)
    assert unseen.fails == ["NOT NOTICED (equal)"]
    figures = totals([told, elsewhere, other, half, replace(unseen, seconds=6.0)]).split("\n")
    assert [line.split()[-4:-1] for line in figures[:5]] == [[str(n), "of", "5"] for n in (4, 3, 1, 1, 1)]
    assert figures[-1].split()[-1] == "2.0"
