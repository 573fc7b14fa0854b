"""Test the oldest and the newest packages that jaxformer runs with, each in an environment of its own, and check dumps in each.

docs/evidence.md has the table that it prints. Environments with PyTorch use Python 3.11. The newest packages are tested on
newer releases of Python, without PyTorch, as a user has them who checks a port beside JAX alone.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pythons import python_of
from jaxformer.cli.flags import parse, run
from jaxformer.errors import InputError

ROOT = Path(__file__).parents[1]
OLDEST = {"jax": "0.8.0", "jaxlib": "0.8.0", "flax": "0.12.0", "optax": "0.2.6", "torch": "2.13.0"}
"""Oldest packages: flax 0.11 has no `nnx.List`, jax 0.7 no `jax.enable_x64`."""
LAST_OF_3_11 = {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "optax": "0.2.8", "torch": "2.13.0"}
"""Packages that pip finds for Python 3.11, with the PyTorch of the `test` extra; flax up to 0.12.8 needs jax up to 0.11.0."""
NEWEST = {"jax": "0.12.0.1", "jaxlib": "0.12.0.1", "flax": "0.12.12", "optax": "0.2.8"}
"""Packages that pip finds for newer releases of Python; newer ones are tried here before pyproject.toml allows them."""


@dataclass(frozen=True)
class Leg:
    """Environment: a release of Python, and packages with their versions."""

    python: str
    packages: Mapping[str, str]

    @property
    def has_torch(self) -> bool:
        """True if PyTorch is installed; without it, test files that import it are skipped."""
        return "torch" in self.packages


LEGS = {
    "3.11": Leg("3.11", LAST_OF_3_11),
    "oldest": Leg("3.11", OLDEST),
    "newest-torch": Leg("3.11", {**LAST_OF_3_11, "torch": "2.15.0"}),
    "3.12": Leg("3.12", NEWEST),
    "3.13": Leg("3.13", NEWEST),
}
"""Environments by name; the first one with PyTorch writes the dumps."""
TESTS = (
    "parity_tests/fast/test_comparison_kinds.py",
    "parity_tests/quality/test_float64.py",
    "parity_tests/fast/test_gpt.py",
    "parity_tests/fast/test_hints.py",
    "parity_tests/fast/test_optimizers.py",
    "parity_tests/quality/test_scan.py",
    "parity_tests/fast/test_unset_arrays.py",
    "tests/runs/test_checkpoint.py",
    "tests/models/test_generate.py",
    "tests/files/test_large_files.py",
    "tests/runs/test_loop.py",
    "tests/recipes/test_reverse.py",
    "tests/runs/test_step.py",
)
"""Tests of the engine, models, decoding, folders and training: some minutes on two cores."""
BRIEF = (
    "tests/runs/test_checkpoint.py::test_weights_come_back_bit_for_bit",
    "tests/models/test_generate.py::test_greedy_is_the_argmax_of_a_full_pass_each_time",
    "tests/files/test_large_files.py",
    "tests/recipes/test_reverse.py::test_generate_writes_the_target",
    "tests/recipes/test_reverse.py::test_resumed_equals_uninterrupted",
)
"""Tests for --brief: models, decoding, folders, training and resuming a run, in a minute."""
TOOLS = ("beartype", "hypothesis", "pytest", "pytest-xdist")
HEADER = """| environment | Python | jax | flax | PyTorch | passed | failed | left out | round trip | seconds |
|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, kw_only=True)
class Environments:
    """Install the oldest and the newest packages, run tests with each, and check dumps that one of them wrote."""

    only: tuple[str, ...] = ()
    """Names of environments: 3.11, oldest, newest-torch, 3.12, 3.13; none given: all."""
    brief: bool = False
    """Run a minute of tests, and check two ports of each small model's dump."""
    dumps: Path | None = None
    """Folder that `python -m benchmarks.round_trip write` wrote; None: the first environment with PyTorch writes one."""
    pythons: tuple[str, ...] = ()
    """Interpreters that are preferred to those of pyenv and PATH, as 3.13=/usr/bin/python3.13."""
    folder: Path | None = None
    """Folder in which the environments stay; None: they are deleted."""


@dataclass(frozen=True)
class Row:
    """Results of one environment: a row of the table."""

    counts: Mapping[str, int]
    """Numbers of tests that passed, failed and were skipped, and of test files that were skipped."""
    round_trip: str
    """Equal verdicts of the round trip, as '20 of 20'."""
    passed: bool
    seconds: float

    def cells(self, name: str, leg: Leg) -> str:
        """Format the row of the table."""
        have = leg.packages
        counts = [str(self.counts[each]) for each in ("passed", "failed")]
        counts.append(f"{self.counts['skipped']}, and {self.counts['files']} files")
        versions = [leg.python, have["jax"], have["flax"], have.get("torch", "none")]
        return f"| {' | '.join([name, *versions, *counts, self.round_trip, f'{self.seconds:.0f}'])} |"


def requirements(name: str, *, brief: bool = False) -> list[str]:
    """Return the requirements for pip; the `brief` tests need no `viz` extra."""
    leg = LEGS[name]
    beside = ["train", *["torch"] * leg.has_torch, *["viz"] * (not brief)]
    tools = (*TOOLS, "transformers") if leg.has_torch else TOOLS
    return [f"{ROOT}[{','.join(beside)}]", *tools, *(f"{package}=={version}" for package, version in leg.packages.items())]


def install(name: str, interpreter: Path, folder: Path, *, brief: bool) -> Path:
    """Create an environment, and return its Python."""
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", *requirements(name, brief=brief)], check=True)
    return python


def counts_of(said: str) -> dict[str, int]:
    """Read the counts from pytest's last line, and from the line about test files that are not collected."""
    found = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error|skipped|files of tests)", said)}
    return {
        "passed": found.get("passed", 0),
        "failed": found.get("failed", 0) + found.get("error", 0),
        "skipped": found.get("skipped", 0),
        "files": found.get("files of tests", 0),
    }


def check(name: str, python: Path, dumps: Path, flags: Environments) -> Row:
    """Run the tests, and check the dumps at the same time; warnings of one library about another are no failures here."""
    begin, leg = time.monotonic(), LEGS[name]
    print(f"== {name}: Python {leg.python}, {', '.join(map(' '.join, leg.packages.items()))}", flush=True)

    def started(*command: str | Path) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen([python, "-m", *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    how = ["--brief"] * flags.brief
    if not (dumps / "says.json").exists():
        if not leg.has_torch:
            raise InputError(f"{name} has no PyTorch to write dumps; give --dumps, or 3.11 among those of --only")
        started("benchmarks.round_trip", "write", *how, dumps).communicate()
    trip = started("benchmarks.round_trip", "check", *how, dumps)
    tests = started("pytest", "-W", "default", *(BRIEF if flags.brief else TESTS))
    (said, _), (verdicts, _) = tests.communicate(), trip.communicate()
    passed = tests.returncode == trip.returncode == 0
    print(verdicts if passed else said + verdicts, flush=True)
    same = re.search(r"(\d+ of \d+) verdicts", verdicts)
    return Row(counts_of(said), same[1] if same else "none", passed, time.monotonic() - begin)


def tried(flags: Environments, folder: Path) -> bool:
    """Test the chosen environments and print the table; True if all of them pass. Those without their Python are left out."""
    rows: dict[str, Row] = {}
    dumps = (flags.dumps or folder / "dumps").resolve()
    for name in flags.only or LEGS:
        interpreter = python_of(LEGS[name].python, flags.pythons)
        if interpreter is None:
            print(f"== {name} is left out: there is no Python {LEGS[name].python} on PATH or of pyenv's; name one by --pythons")
            continue
        rows[name] = check(name, install(name, interpreter, folder / name, brief=flags.brief), dumps, flags)
    print("\n".join([HEADER, *(row.cells(name, LEGS[name]) for name, row in rows.items())]))
    return all(row.passed for row in rows.values())


def main(arguments: list[str]) -> int:
    """Run the command; exit code 1 if tests fail or a verdict differs."""
    flags = parse(Environments, arguments, prog="python -m benchmarks.environments")
    if unknown := [name for name in flags.only if name not in LEGS]:
        raise InputError(f"only = {unknown[0]!r} is not known; give some of {', '.join(LEGS)}")
    folder = flags.folder or Path(tempfile.mkdtemp())
    try:
        return int(not tried(flags, folder.resolve()))
    finally:
        if flags.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    run(main)
