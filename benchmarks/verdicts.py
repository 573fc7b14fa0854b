"""Write verdicts on known bugs and clean ports, one file per case, so that `diff` shows the effect of a change of the engine.

    python -m benchmarks.verdicts before mutants causes
    field-venv/bin/python -m benchmarks.verdicts before bugs ports
    python -m benchmarks.verdicts after mutants causes
    diff -r before after

`mutants`: the bugs of `jaxformer parity mutants`. `bugs` and `ports`: those of `benchmarks.field`, in an environment of its
own. `causes`: every report that the fast parity tests make. Cases whose file exists are skipped, so that a stopped run resumes.
A difference between two runs of the same code is a defect: verdicts must not depend on chance.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxformer.cli.flags import parse, run
from jaxformer.errors import ParityError
from jaxformer.evaluation.outcome import structure
from jaxformer.io.atomic import written_whole

Case = tuple[str, Callable[[], str]]
"""Name of a case, and the function that returns its verdict."""
VERDICTS = "JAXFORMER_VERDICTS"
"""Environment variable that tells pytest's processes the folder for reports."""
Gate = Literal["mutants", "bugs", "ports", "causes"]


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Write the verdicts of the gates to files."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of the files; created if it does not exist."""
    gates: Annotated[tuple[Gate, ...], tyro.conf.Positional] = ("mutants", "causes")
    """Gates whose cases are run."""
    only: str = ""
    """Use only the cases whose name contains this text."""
    part: tuple[int, int] = (0, 1)
    """Share the cases with other processes: number of this one, from 0, and number of processes."""


def main(arguments: list[str]) -> None:
    """Write a file for each case."""
    flags = parse(Verdicts, arguments, prog="python -m benchmarks.verdicts")
    which, many = flags.part
    for gate in flags.gates:
        if gate == "causes":
            run_tests(flags.folder / gate, flags.only)
            continue
        cases = [case for case in CASES[gate]() if flags.only in case[0]]
        for name, say in cases[which::many]:
            if not (file := flags.folder / gate / f"{file_name(name)}.txt").exists():
                write(file, say())
                print(file, flush=True)


def write(file: Path, text: str) -> None:
    """Write a file (atomic write); its folder is created if it does not exist."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(file) as unfinished:
        unfinished.write_text(f"{text}\n")


def file_name(case: str) -> str:
    """Return the name of a case with other characters than a file name's replaced."""
    return re.sub(r"[^\w.,=+-]+", "_", case)


def mutants() -> Iterator[Case]:
    """Yield the bugs of the project's own gate."""
    from jaxformer.evaluation.mutants import MUTANTS
    from jaxformer.evaluation.outcome import Outcome, table_row
    from jaxformer.evaluation.run import try_mutant

    def said(outcome: Outcome) -> str:
        modules = (f"{module.name}: {module.cause or module.looks}" for module in outcome.diverging)
        causes = {structure(cause) for module in outcome.diverging for cause in module.causes}
        return "\n".join([table_row(outcome), outcome.cause, *modules, *sorted(causes)])

    for mutant in MUTANTS:
        yield mutant.name, lambda mutant=mutant: said(try_mutant(mutant))


def ports() -> Iterator[Case]:
    """Yield ports that others wrote, as they are."""
    from benchmarks.field import Field, as_of_old, compared
    from benchmarks.field_kinds import KINDS

    as_of_old()
    for kind in KINDS:
        yield kind.model, lambda kind=kind: str(compared(kind, Field())[0])


def bugs() -> Iterator[Case]:
    """Yield these ports with a planted bug each."""
    from benchmarks.field import Field, as_of_old, compared, file_of
    from benchmarks.field_bugs import BUGS, Bug
    from benchmarks.field_kinds import KINDS, Kind
    from benchmarks.field_outcome import outcome
    from benchmarks.field_source import planted

    def said(bug: Bug, kind: Kind) -> str:
        with planted(file_of(kind), bug.where, bug.old, bug.new):
            report, _ = compared(kind, Field())
        causes = {structure(cause) for module in report.diverging for cause in module.causes}
        return "\n".join(["; ".join(outcome(bug, report, 0.0).fails) or "ok", str(report), *sorted(causes)])

    as_of_old()
    for kind in KINDS:
        for bug in (bug for bug in BUGS if bug.port == kind.name):
            yield bug.title, lambda bug=bug, kind=kind: said(bug, kind)


CASES: dict[str, Callable[[], Iterator[Case]]] = {"mutants": mutants, "ports": ports, "bugs": bugs}


def run_tests(folder: Path, only: str) -> None:
    """Run the fast parity tests with the plugin `benchmarks.verdicts_of_tests`; ParityError if one fails."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "benchmarks.verdicts_of_tests", "parity_tests", "-k", only]
    if subprocess.run(command, env=os.environ | {VERDICTS: str(folder.absolute())}, check=False).returncode:
        raise ParityError("a test failed")


if __name__ == "__main__":
    run(main)
