"""Write the smallest failing call for bugs planted in other people's ports, and count those that reproduce.

    field-venv/bin/pip install cloudpickle
    field-venv/bin/python -m benchmarks.reduced --count 50

`benchmarks/field.py` describes the environment. A bug reproduces if the comparison writes a test that fails on the source with
the bug, and passes on the source without it. The bugs are those of `benchmarks.field_bugs`, drawn by a seed.
"""

import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.field_bugs import BUGS, Bug
from benchmarks.field_kinds import KINDS, Kind
from benchmarks.field_models import as_of_old, file_of, flax_release, ported
from benchmarks.field_source import planted
from jaxformer.cli.flags import parse, run
from jaxformer.parity.compare import compare

CHECKS = ("weights", "forward", "local")


@dataclass(frozen=True, kw_only=True)
class ReducedFlags:
    """Write failing calls for planted bugs, and count those that fail with the bug and pass without it."""

    seed: int = 0
    """Seed by which bugs are drawn."""
    count: int = 50
    """Number of bugs."""
    bug: str = ""
    """Use only the bugs whose name, with their port's, contains this text."""


def main(arguments: list[str]) -> None:
    """Print a line for each bug, then the figures."""
    flags = parse(ReducedFlags, arguments, prog="python -m benchmarks.reduced")
    as_of_old()
    kinds = {kind.name: kind for kind in KINDS}
    bugs = [bug for bug in BUGS if flags.bug in bug.title]
    drawn = random.Random(flags.seed).sample(bugs, min(flags.count, len(bugs)))
    outcomes: Counter[str] = Counter()
    for bug in drawn:
        start = time.perf_counter()
        found, says = judged(bug, kinds[bug.port])
        outcomes[found] += 1
        print(f"{found:24} {time.perf_counter() - start:5.1f} s  {bug.title:50} {says}", flush=True)
    for found, n in outcomes.most_common():
        print(f"{found:24} {n:4} of {len(drawn)}")


def judged(bug: Bug, kind: Kind) -> tuple[str, str]:
    """Return the outcome of one bug, and where its test is, or why there is none."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "failing.py"
        with planted(file_of(kind), bug.where, bug.old, bug.new):
            port = ported(kind, flax_release(kind.package))
            report = compare(
                port.torch_model,
                port.params,
                port.inputs,
                call_torch=port.call_torch,
                call_jax=port.call_jax,
                checks=CHECKS,
                tier="A",
                search_seconds=0,
                reduce_to=file,
            )
            if report.reduced is None or not report.reduced.file:
                return "not written", report.reduced.why if report.reduced else report.verdict
            if passes(file):
                return "passes with the bug", ""
        size = file.with_suffix(".safetensors").stat().st_size
        says = f"{report.reduced.module}, {size / 1024:,.0f} KiB"
        return ("reproduces" if passes(file) else "fails without the bug"), says


def passes(file: Path) -> bool:
    """Run the test of a file in this process, in which the bug is planted."""
    names: dict[str, Any] = {"__file__": str(file), "__name__": file.stem}
    exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
    (test,) = (value for name, value in names.items() if re.match(r"test_\w+$", name))
    try:
        test()
    except Exception as error:
        if not isinstance(error, AssertionError):
            print(f"{type(error).__name__}: {str(error).splitlines()[0]:.120}")
        return False
    return True


if __name__ == "__main__":
    run(main)
