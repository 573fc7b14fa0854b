"""The budget of a search, in operations and in seconds; what a terminal shows of it; and a cause as data in the report."""

import io
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.errors import ConfigError
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.runs import session
from jaxformer.parity.runs.session import ALL, EACH, Budget, Session
from jaxformer.parity.validate import checked_seconds
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(session, "time", found)
    return found


def test_operations_are_shared_by_all_differences(clock):
    of_all = Session(60.0)
    for left in (ALL - EACH, ALL - 2 * EACH):
        with Budget(of_all) as budget:
            budget.spend(EACH - 1)
            assert not budget.is_spent
            budget.spend(1)
            assert budget.is_spent
        assert of_all.left == left


def test_a_single_difference_may_take_all_operations(clock):
    with Budget(Session(60.0, is_single=True)) as budget:
        budget.spend(ALL - 1)
        assert not budget.is_spent
        budget.spend(1)
        assert budget.is_spent


def test_seconds_are_shared_too_and_time_between_searches_is_free(clock):
    of_all = Session(10.0)
    for used in (4.0, 5.0):
        with Budget(of_all) as budget:
            clock.now += used
            assert not budget.is_late
        clock.now += 1000
    with Budget(of_all) as budget:
        clock.now += 1.0
        assert budget.is_late
        assert budget.is_spent


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_terminal_alone_shows_how_far_it_is_from_the_third_second_on(clock, monkeypatch, stream):
    shown = stream()
    monkeypatch.setattr(session.sys, "stderr", shown)
    with Budget(Session(60.0)) as budget:
        for _ in range(6):
            clock.now += 1.0
            budget.tried += 500
            budget.spend(1)
    lines = [each for each in shown.getvalue().split("\r\033[K") if each]
    if stream is Terminal:
        assert lines[0] == "searching for the cause: 2,000 changes of torch's code tried, 4 s of at most 60"
        assert len(lines) == 3
        assert shown.getvalue().endswith("\r\033[K")
    else:
        assert lines == []


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 7)

    def forward(self, x):
        return (self.first(x).cos() * 3).cosh()


THEIRS = excite(Theirs(), seed=0)
WEIGHTS = {name: jnp.asarray(each.detach().numpy()) for name, each in THEIRS.state_dict().items()}


def ours(weights, x):
    return jnp.cosh(jnp.cos(x @ weights["first.weight"].T + weights["first.bias"]) * 2.5)


def report_of(**options):
    checks = ("weights", "forward", "local")
    return compare(THEIRS, WEIGHTS, (noise(3, 5),), call_jax=ours, checks=checks, tier="A", **options)


def test_a_cause_is_data_in_the_report():
    report = report_of()
    assert Report.from_json(report.to_json()) == report
    (module,) = json.loads(report.to_json())["modules"]
    (cause,) = module["causes"]
    assert cause["change"] == "arguments.number"
    assert cause["operator"] == "arguments"
    assert cause["certainty"] == "exact"
    assert cause["residual"] <= 1e-12
    assert cause["value"] == 2.5
    (target,) = cause["targets"]
    lines = Path(target["file"]).read_text().split("\n")
    assert "self.first(x).cos() * 3" in lines[target["line"] - 1]
    assert re.search(r"test_session\.py:\d+$", module["source"])


def test_without_seconds_nothing_is_searched():
    report = report_of(search_seconds=0)
    assert report.status == "different"
    assert report.modules[0].causes == []
    assert "no changes of torch's code (search_seconds 0)" in report.verdict


@pytest.mark.parametrize("seconds", [np.int64(5), np.float32(5), 604800])
def test_numpys_numbers_are_seconds_too(seconds):
    assert checked_seconds(seconds) == seconds


@pytest.mark.parametrize("seconds", [-1, np.nan, "long", 1e308, np.bool_(True), np.float32(np.inf)])
def test_other_budgets_are_refused_in_one_line(seconds):
    with pytest.raises(ConfigError, match=r"search_seconds = \S+ is "):
        report_of(search_seconds=seconds)
