"""pyproject.toml allows what `python -m benchmarks.environments` tries, from the oldest to the newest, and nothing beyond."""

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from benchmarks.environments import NEWEST, OLDEST, ROOT, SETS, TESTS, requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RANGES = {
    Requirement(text).name: Requirement(text).specifier
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["torch"])
}


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_allowed(name):
    for package, number in SETS[name].items():
        assert package == "jaxlib" or number in RANGES[package], package
    assert all((ROOT / path).is_file() for path in TESTS)
    assert {Requirement(text).name for text in requirements(name)[1:]} >= {"jax", "flax", "torch"}


@pytest.mark.parametrize("package", ["jax", "flax", "optax"])
def test_nothing_older_is_allowed(package):
    least = [each.version for each in RANGES[package] if each.operator == ">="]
    assert [Version(each) for each in least] == [Version(OLDEST[package])]


@pytest.mark.parametrize("package", ["jax", "flax", "optax", "torch"])
def test_the_next_minor_release_is_not_allowed(package):
    major, minor, *_ = Version(NEWEST[package]).release
    assert f"{major}.{minor + 1}.0" not in RANGES[package]


@pytest.mark.parametrize("package", ["jax", "flax", "optax", pytest.param("torch", marks=pytest.mark.torch)])
def test_the_present_one_is_allowed(package):
    assert re.sub(r"\+.*", "", version(package)) in RANGES[package]
