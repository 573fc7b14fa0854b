"""Mend bugs in other people's ports by a script that only reads the JSON of a report, and by one that only sees np.allclose.

    field-venv/bin/python -m benchmarks.agents --count 190

`benchmarks/field.py` describes the environment, `benchmarks.field_bugs` the bugs. Both scripts make the same small repairs (see
`benchmarks/repairs.py`), one a round, for at most `rounds` rounds. The first makes those that the report of the planted bug
calls for, and stops when a comparison is EQUAL. The second draws them from the whole file, and stops when outputs in float32
pass `np.allclose(atol=1e-3)`; whether that mended the bug is judged by a comparison afterwards.
"""

import contextlib
import inspect
import io
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.field_bugs import BUGS, Bug
from benchmarks.field_kinds import KINDS, Kind
from benchmarks.field_models import Port, as_of_old, file_of, flax_release, ported
from benchmarks.field_source import replaced, with_source
from benchmarks.repairs import Repair, Source
from jaxformer.cli.flags import parse, run
from jaxformer.parity.compare import compare
from jaxformer.parity.report.report import Report

ATOL = 1e-3


@dataclass(frozen=True, kw_only=True)
class AgentsFlags:
    """Mend planted bugs by the JSON of a report, and by np.allclose alone; print how many, and in how many rounds."""

    seed: int = 0
    """Seed by which bugs and the repairs without a report are drawn."""
    count: int = 190
    """Number of bugs."""
    rounds: int = 10
    """Number of repairs that may be tried for a bug."""
    bug: str = ""
    """Use only the bugs whose name, with their port's, contains this text."""
    json: Path | None = None
    """File for the rounds of every bug."""


@dataclass(frozen=True)
class Mended:
    """Outcome of one bug."""

    rounds: int
    """Number of repairs that were tried."""
    stopped: bool
    """True if the script took the port for mended."""
    equal: bool
    """True if a comparison says so."""


class Bench:
    """A port with a planted bug, as a file that a script may change."""

    def __init__(self, bug: Bug, kind: Kind, folder: str) -> None:
        self.file, self.kind = file_of(kind), kind
        clean = inspect.getsource(import_module(self.file))
        self.path = Path(folder) / f"{self.file.rpartition('.')[2]}.py"
        self.source = Source(replaced(clean, bug.where, bug.old, bug.new))

    def judged(self, text: str, judge: Callable[[Port], Report | bool]) -> Report | bool:
        """Judge the port with this source; False if it fails."""
        self.path.write_text(text, "utf-8")
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                with with_source(self.file, text, str(self.path)):
                    return judge(ported(self.kind, flax_release(self.kind.package)))
            except Exception:  # a repair may break a port in any way
                return False

    def repaired(self, repairs: list[Repair], rounds: int, judge: Callable[[Port], Report | bool]) -> tuple[str, int]:
        """Return the source of the first repair that is judged right, or '', and the number of repairs tried."""
        tried, seen = 0, {self.source.text}
        for repair in repairs:
            text = repair.applied(self.source.text)
            if text in seen or tried == rounds or not parses(text):
                continue
            seen.add(text)
            tried += 1
            if (found := self.judged(text, judge)) is True or (isinstance(found, Report) and found.status == "equal"):
                return text, tried
        return "", tried


def parses(text: str) -> bool:
    """True if a text is Python."""
    try:
        compile(text, "repair", "exec")
    except SyntaxError:
        return False
    return True


def reported(port: Port) -> Report:
    """Compare a port, and search for causes."""
    return _compared(port, ("weights", "forward", "local"), 60.0)


def equal(port: Port) -> Report:
    """Compare a port without a search."""
    return _compared(port, ("weights", "forward"), 0.0)


def proven(port: Port) -> Report:
    """Compare a port's values and gradients."""
    return _compared(port, ("weights", "forward", "gradients"), 0.0)


def _compared(port: Port, checks: tuple[str, ...], seconds: float) -> Report:
    return compare(
        port.torch_model,
        port.params,
        port.inputs,
        call_torch=port.call_torch,
        call_jax=port.call_jax,
        checks=checks,
        tier="A",
        search_seconds=seconds,
    )


def close(port: Port) -> bool:
    """True if both outputs in float32 pass np.allclose."""
    with torch.no_grad():
        wanted = port.call_torch(port.torch_model, *map(torch.from_numpy, port.inputs)).numpy()
    return np.allclose(np.asarray(port.call_jax(port.params, *port.inputs)), wanted, rtol=0, atol=ATOL)


def by_report(bench: Bench, rounds: int) -> Mended:
    """Mend a port by the JSON of its report."""
    report = bench.judged(bench.source.text, reported)
    if not isinstance(report, Report):
        return Mended(0, False, False)
    if report.status == "equal":
        return Mended(0, True, False)
    text, tried = bench.repaired(bench.source.ordered(json.loads(report.to_json())), rounds, equal)
    return Mended(tried, bool(text), bool(text) and is_equal(bench, text))


def by_allclose(bench: Bench, rounds: int, seed: int) -> Mended:
    """Mend a port whose outputs are only tested."""
    if bench.judged(bench.source.text, close) is True:
        return Mended(0, True, False)
    text, tried = bench.repaired(bench.source.drawn(seed), rounds, close)
    return Mended(tried, bool(text), bool(text) and is_equal(bench, text))


def is_equal(bench: Bench, text: str) -> bool:
    """True if a comparison of values and gradients is EQUAL."""
    found = bench.judged(text, proven)
    return isinstance(found, Report) and found.status == "equal"


def main(arguments: list[str]) -> None:
    """Print a line for each bug, then the figures."""
    flags = parse(AgentsFlags, arguments, prog="python -m benchmarks.agents")
    as_of_old()
    kinds = {kind.name: kind for kind in KINDS}
    bugs = [bug for bug in BUGS if flags.bug in bug.title]
    drawn = random.Random(flags.seed).sample(bugs, min(flags.count, len(bugs)))
    found: dict[str, tuple[Mended, Mended]] = {}
    for bug in drawn:
        start = time.perf_counter()
        with TemporaryDirectory() as folder:
            bench = Bench(bug, kinds[bug.port], folder)
            found[bug.title] = by_report(bench, flags.rounds), by_allclose(bench, flags.rounds, flags.seed)
        says = "  ".join(f"{words(each):26}" for each in found[bug.title])
        print(f"{bug.title:50} {time.perf_counter() - start:5.1f} s  {says}", flush=True)
    for name, results in zip(("the report", "allclose"), zip(*found.values(), strict=True), strict=True):
        print(figures(name, results))
    if flags.json:
        flags.json.write_text(json.dumps({title: [vars(each) for each in both] for title, both in found.items()}, indent=1))


def words(mended: Mended) -> str:
    """Say what became of a bug."""
    if mended.equal:
        return f"mended in {mended.rounds}"
    return f"taken for mended after {mended.rounds}" if mended.stopped else f"not mended in {mended.rounds}"


def figures(name: str, results: tuple[Mended, ...]) -> str:
    """Say how many bugs were mended, and in how many rounds."""
    rounds = [each.rounds for each in results if each.equal]
    wrong = sum(each.stopped and not each.equal for each in results)
    middle = f", half of them in {statistics.median(rounds):g} rounds" if rounds else ""
    return f"by {name}: {len(rounds)} of {len(results)} mended{middle}; {wrong} taken for mended"


if __name__ == "__main__":
    run(main)
