"""The oldest and the newest packages that jaxformer runs with: an environment of each, and the tests that tell most."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxformer.flags import parse, run

ROOT = Path(__file__).parents[1]
OLDEST = {"jax": "0.8.0", "jaxlib": "0.8.0", "flax": "0.12.0", "optax": "0.2.6"}
"""flax 0.11 has no `nnx.List`, jax 0.7 no `jax.enable_x64`."""
NEWEST = {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "optax": "0.2.8", "torch": "2.15.0"}
"""What pip finds today; a newer one is tried here before pyproject.toml allows it."""
SETS = {"oldest": OLDEST, "newest": NEWEST}
TESTS = (
    "parity_tests/test_comparison_kinds.py",
    "parity_tests/test_float64.py",
    "parity_tests/test_gpt.py",
    "parity_tests/test_hints.py",
    "parity_tests/test_scan.py",
    "parity_tests/test_optimizers.py",
    "tests/test_step.py",
)
"""Engine, models and training: a few minutes on two cores."""
TOOLS = ("beartype", "hypothesis", "pytest", "pytest-xdist", "transformers")


@dataclass(frozen=True, kw_only=True)
class Environments:
    """Install the oldest and the newest packages, and run tests with each."""

    only: Literal["oldest", "newest", "both"] = "both"
    """Which of the two."""
    folder: Path | None = None
    """Where the environments are left; None: they are deleted."""


def requirements(name: str) -> list[str]:
    """What pip is asked for; torch as the `test` extra has it, where the set names none."""
    pins = {"torch": "2.13.0", **SETS[name]}
    return [f"{ROOT}[train]", *TOOLS, *(f"{package}=={version}" for package, version in pins.items())]


def check(name: str, folder: Path) -> bool:
    """Whether the tests pass; the environment is made anew. Warnings of one library about another are no failures here."""
    python = folder / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *requirements(name)], check=True)
    print(f"== {name}: {', '.join(f'{package} {version}' for package, version in SETS[name].items())}", flush=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([python, "-m", "pytest", "-W", "default", *TESTS], cwd=ROOT, env=environment).returncode == 0


def main(arguments: list[str]) -> None:
    """The command; exit code 1 where tests fail."""
    flags = parse(Environments, arguments, prog="python -m benchmarks.environments")
    names = list(SETS) if flags.only == "both" else [flags.only]
    folder = flags.folder or Path(tempfile.mkdtemp())
    try:
        passed = [check(name, folder.resolve() / name) for name in names]
    finally:
        if flags.folder is None:
            shutil.rmtree(folder)
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    run(main)
