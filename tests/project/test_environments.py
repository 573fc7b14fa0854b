"""pyproject.toml allows what `python -m benchmarks.environments` tries, from the oldest to the newest, and nothing beyond."""

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from benchmarks.environments import BRIEF, HEADER, LEGS, OLDEST, ROOT, TESTS, Row, counts_of, main, requirements
from benchmarks.pythons import python_of
from benchmarks.xla_flags import FIRST, REMOVED, xla_flags

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RANGES = {
    Requirement(text).name: Requirement(text).specifier
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["torch"])
}


@pytest.mark.parametrize("name", LEGS)
def test_every_set_is_allowed(name):
    leg = LEGS[name]
    for package, number in leg.packages.items():
        assert package == "jaxlib" or number in RANGES[package], package
    assert leg.python in SpecifierSet(PROJECT["requires-python"])
    assert {Requirement(text).name for text in requirements(name)[1:]} >= {*leg.packages}
    asks = [text for text in requirements(name)[1:] if "torch" in text or "transformers" in text]
    assert bool(asks) == leg.has_torch


def test_every_test_exists():
    for path in (*TESTS, *BRIEF):
        file, _, name = path.partition("::")
        assert f"def {name}" in (ROOT / file).read_text("utf-8"), path


@pytest.mark.parametrize("package", ["jax", "flax", "optax"])
def test_nothing_older_is_allowed(package):
    least = [each.version for each in RANGES[package] if each.operator == ">="]
    assert [Version(each) for each in least] == [Version(OLDEST[package])]


@pytest.mark.parametrize("package", ["jax", "flax", "optax", "torch"])
def test_the_next_minor_release_is_not_allowed(package):
    newest = max((leg.packages[package] for leg in LEGS.values() if package in leg.packages), key=Version)
    major, minor, *_ = Version(newest).release
    assert f"{major}.{minor + 1}.0" not in RANGES[package]


@pytest.mark.parametrize("package", ["jax", "flax", "optax", pytest.param("torch", marks=pytest.mark.torch)])
def test_the_present_one_is_allowed(package):
    assert re.sub(r"\+.*", "", version(package)) in RANGES[package]


def test_a_row_of_the_table():
    said = "no PyTorch here: 7 files of tests that import it are left out\n1 failed, 20 passed, 3 skipped, 2 errors in 9s"
    row = Row(counts_of(said), "20 of 20", passed=False, seconds=61.4).cells("3.13", LEGS["3.13"])
    assert row == "| 3.13 | 3.13 | 0.12.0.1 | 0.12.12 | none | 20 | 3 | 3, and 7 files | 20 of 20 | 61 |"
    assert HEADER.splitlines()[0].count("|") == row.count("|")


def test_where_a_python_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert python_of("3.99") is None
    assert python_of(".".join(map(str, sys.version_info[:2]))) == Path(sys.executable)
    for name in ("3.99.2", "3.99.11", "3.99.12rc1", "3.9.9"):
        (tmp_path / "versions" / name / "bin").mkdir(parents=True)
        (tmp_path / "versions" / name / "bin/python").touch()
    assert python_of("3.99") == tmp_path / "versions/3.99.11/bin/python"
    assert python_of("3.99", ["3.98=/a", "3.99=/b"]) == Path("/b")


def test_an_environment_without_its_python_is_left_out(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("benchmarks.environments.python_of", lambda *_: None)
    assert main(["--only", "3.13", "--brief"]) == 0
    assert "3.13 is left out: there is no Python 3.13" in capsys.readouterr().out


def test_flags_of_xla_are_those_of_the_release():
    (gone, last), (new, first) = *REMOVED.items(), *FIRST.items()
    assert xla_flags({gone: "1", new: "2", "xla_always": "3"}, last) == f"--{new}=2 --xla_always=3"
    assert xla_flags({gone: "1", new: "2", "xla_always": "3"}, (0, 8, 0)) == f"--{gone}=1 --xla_always=3"
    assert first > (0, 8, 0)
