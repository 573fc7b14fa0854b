"""The fixture and the function that assert parity, in a pytest run of their own."""

import json
import tomllib
from pathlib import Path

import pytest
import torch  # noqa: F401 (a run in this process unloads what it was the first to load, and torch does not load twice)

import jaxformer.parity.testing  # noqa: F401
from jaxformer.parity.report.report import Report
from jaxformer.pytest_plugin import file_stem

pytest_plugins = ["pytester"]

PORT = """
import numpy as np
import torch
from flax import nnx
import pytest

X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)

class Port(nnx.Module):
    def __init__(self, theirs, plus=0.0):
        self.kernel = nnx.Param(theirs.weight.detach().numpy().T)
        self.bias = nnx.Param(theirs.bias.detach().numpy())
        self.plus = plus

    def __call__(self, x):
        return x @ self.kernel + self.bias + self.plus

THEIRS = torch.nn.Linear(6, 4)
FEW = {"checks": ("weights", "forward", "local"), "tier": "A"}
"""
EQUAL = "EQUAL: weights, forward, local (tier A)"
DIFFERENT = "DIFFERENT: the model"


@pytest.fixture
def run(pytester, monkeypatch):
    """run(tests, *arguments): the outcome of a file with these tests; no other plugin is there."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(tests: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_port=PORT + tests)
        return pytester.runpytest_inprocess("-p", "jaxformer.pytest_plugin", "-p", "no:cacheprovider", *arguments)

    return run


BOTH = """
def test_equal(assert_parity):
    report = assert_parity(THEIRS, Port(THEIRS), (X,), **FEW)
    assert report.exit_code == 0

@pytest.mark.parametrize("plus", [1.0])
def test_different(assert_parity, plus):
    assert_parity(THEIRS, Port(THEIRS, plus), (X,), **FEW)
"""


def errors(result: pytest.RunResult) -> list[str]:
    return [line.removeprefix("E").strip() for line in result.outlines if line.startswith("E  ")]


def test_a_failure_is_the_report_and_nothing_else(run):
    result = run(BOTH)
    result.assert_outcomes(passed=1, failed=1)
    said = errors(result)
    assert said[0].removeprefix("AssertionError: ") == said[-1]
    assert said[1] == "weights    equal       2 of 2 tensors used once, bitwise equal"
    assert said[-1].startswith(DIFFERENT)
    assert any(line.startswith("forward    different   output ") for line in said)
    section = result.outlines[next(i for i, line in enumerate(result.outlines) if "FAILURES" in line) :]
    assert not any("pytest_plugin.py" in line or "testing.py" in line for line in section), "frames of ours"
    assert not any("parity:" in line for line in result.outlines), "nothing was written"


def test_the_function_alone(run):
    result = run("""
from jaxformer.parity.testing import assert_parity

def test_equal():
    assert assert_parity(THEIRS, Port(THEIRS), (X,), **FEW).verdict == "EQUAL: weights, forward, local (tier A)"

def test_different():
    assert_parity(THEIRS, Port(THEIRS, 1.0), (X,), **FEW)

def test_not_compared():
    assert_parity(torch.nn.Linear(6, 5), Port(THEIRS), (X,), **FEW)
""")
    result.assert_outcomes(passed=1, failed=2)
    said = errors(result)
    assert any(line.startswith(DIFFERENT) for line in said)
    assert said[-1].startswith("COULD NOT COMPARE: weights: ")


def test_reports_are_kept(run, pytester):
    result = run(BOTH, "--parity-report", "found/reports")
    result.assert_outcomes(passed=1, failed=1)
    folder = pytester.path / "found/reports"
    assert f"parity: 2 reports in {folder}" in result.outlines
    files = {path.name: Report.from_json(path.read_text("utf-8")) for path in folder.glob("*.json")}
    assert {name: report.exit_code for name, report in files.items()} == {
        "test_port.py--test_equal.json": 0,
        "test_port.py--test_different[1.0].json": 1,
    }


def test_two_reports_of_one_test(run, pytester):
    result = run(
        """
def test_two(assert_parity):
    for _ in range(2):
        assert_parity(THEIRS, Port(THEIRS), (X,), **FEW)
""",
        "--parity-report=kept",
    )
    assert f"parity: 2 reports in {pytester.path / 'kept'}" in result.outlines
    names = sorted(path.name for path in (pytester.path / "kept").glob("*.json"))
    assert names == ["test_port.py--test_two-2.json", "test_port.py--test_two.json"]
    assert all(json.loads((pytester.path / "kept" / name).read_text())["verdict"] == EQUAL for name in names)


def test_the_report_is_a_page_too(run, pytester):
    run(BOTH, "--parity-report", "pages", "-k", "equal")
    page = (pytester.path / "pages/test_port.py--test_equal.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "weights, forward, local (tier A)" in page


def test_a_folder_that_is_a_file(run, pytester):
    (pytester.path / "taken").write_text("")
    result = run(BOTH, "--parity-report", "taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == [
        f"ERROR: --parity-report {pytester.path / 'taken'} cannot be made: File exists; give a folder",
        "",
    ]


@pytest.mark.slow
def test_xdist_counts_what_its_workers_wrote(run, pytester):
    result = run(BOTH, "--parity-report", "kept", "-p", "xdist", "-n", "1")
    result.assert_outcomes(passed=1, failed=1)
    assert f"parity: 2 reports in {pytester.path / 'kept'}" in result.outlines


def test_names_of_files():
    assert file_stem("tests/test_port.py::TestIt::test_gpt[2-a]") == "tests-test_port.py--TestIt--test_gpt[2-a]"
    strange = [file_stem(f"test_port.py::test[{name}]") for name in ("a b", "a:b", "ä", "x" * 300)]
    assert len(set(strange)) == 4
    assert all(len(name) < 170 and name.isascii() and " " not in name and ":" not in name for name in strange)


def test_the_package_offers_it_to_pytest():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"] == {"pytest11": {"jaxformer": "jaxformer.pytest_plugin"}}
