"""Kill matrix: which operators of the search explain which planted bugs, with every explainer asked and every proposal tried.

    field-venv/bin/python -m benchmarks.kill_matrix matrix.jsonl
    field-venv/bin/python -m benchmarks.kill_matrix matrix.jsonl --only llama

`benchmarks/field.py` describes the environment. The file gets a line for each bug of `benchmarks.field_bugs`; bugs whose line
exists are skipped, so that a stopped run resumes. For each bug, the first difference that has a cause is searched to the end.

The table has for each operator the number of bugs that it names, of those that no other operator names, and of the ports of
its bugs, and the number and seconds of its proposals. An operator that names no bug alone, or only bugs of one port, needs
another reason to stay.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import tyro

from benchmarks.field import Field, as_of_old, compared, file_of
from benchmarks.field_bugs import BUGS
from benchmarks.field_kinds import KINDS
from benchmarks.field_source import planted
from jaxformer.cli.flags import parse, run
from jaxformer.parity.diagnose import explainers
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.evidence import Difference
from jaxformer.parity.diagnose.registry import kinds
from jaxformer.parity.diagnose.search import Search, best_of

CHECKS = ("weights", "forward", "local")


@dataclass(frozen=True, kw_only=True)
class KillMatrix:
    """Count which operators name which planted bugs."""

    file: Annotated[Path, tyro.conf.Positional]
    """File of one JSON object per line; created if it does not exist."""
    only: str = ""
    """Use only the bugs whose title contains this text."""
    part: tuple[int, int] = (0, 1)
    """Share the bugs with other processes: number of this one, from 0, and number of processes."""


@dataclass
class Row:
    """Row of the matrix: one bug."""

    bug: str
    named: Counter[str] = field(default_factory=Counter)
    """Number of proposals that explain the bug, by operator."""
    tried: Counter[str] = field(default_factory=Counter)
    """Number of proposals tried, by operator."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds spent, by operator."""
    is_whole: bool = False
    """True if a difference was searched to the end."""

    def explain(self, difference: Difference) -> Diagnosis:
        """Ask every explainer and count their causes; once one difference has a cause, explain others in the ordinary way."""
        if self.named:
            return ordinary(difference)
        with mock.patch.object(Search, "_first_found", lambda search: self.all_found(search)):
            found = [found for each in explainers.EXPLAINERS if each.fits(difference) and (found := each.explain(difference))]
        several = [Diagnosis((each,)) if isinstance(each, Candidate) else each for each in found]
        self.named.update(cause.operator for each in several for cause in each.causes() if cause.operator not in self.named)
        return several[0] if several else Diagnosis()

    def all_found(self, search: Search) -> list[Candidate]:
        """Try every proposal that the budget allows, and return the best candidates."""
        found = []
        for kind, _ in kinds(search.replay, search.budget.session):
            for proposal in kind:
                if search.budget.is_spent:
                    return best_of(found)
                search.budget.tried += 1
                start, name = time.perf_counter(), proposal.mutation.change.operator
                if candidate := search._tried(proposal, []):
                    found.append(candidate)
                    self.named[name] += 1
                self.tried[name] += 1
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.is_whole = True
        return best_of(found)


ordinary = explainers.explain


@contextmanager
def explained_by(row: Row) -> Iterator[None]:
    """Run comparisons whose explanations are counted in a row."""
    with mock.patch.object(explainers, "explain", row.explain):
        yield


def main(arguments: list[str]) -> None:
    """Write a line to the file for each bug, and print the table."""
    flags = parse(KillMatrix, arguments, prog="python -m benchmarks.kill_matrix")
    as_of_old()
    known = {row["bug"] for row in lines_of(flags.file)}
    which, many = flags.part
    bugs = [bug for bug in BUGS if flags.only in bug.title][which::many]
    for bug in (bug for bug in bugs if bug.title not in known):
        kind, row = next(kind for kind in KINDS if kind.name == bug.port), Row(bug.title)
        with planted(file_of(kind), bug.where, bug.old, bug.new), explained_by(row):
            compared(kind, Field(checks=CHECKS))
        with flags.file.open("a") as file:
            file.write(json.dumps(vars(row)) + "\n")
        print(f"{bug.title:52} {', '.join(row.named) or 'none'}", flush=True)
    print("\n".join(table(lines_of(flags.file))))


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Read the rows that the file has so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(rows: list[dict[str, Any]]) -> Iterable[str]:
    """Yield one line for each operator, those that name the fewest bugs alone first."""
    names = {name for row in rows for name in (*row["named"], *row["tried"])}
    yield f"{'operator':20} {'bugs':>5} {'alone':>5} {'ports':>5} {'tried':>8} {'seconds':>8}"
    for name in sorted(names, key=lambda name: (sum([*row["named"]] == [name] for row in rows), name)):
        named = [row for row in rows if name in row["named"]]
        alone = sum([*row["named"]] == [name] for row in named)
        ports = len({row["bug"].partition(":")[0] for row in named})
        tried, seconds = (sum(row[what].get(name, 0) for row in rows) for what in ("tried", "seconds"))
        yield f"{name:20} {len(named):5} {alone:5} {ports:5} {tried:8,} {seconds:8.1f}"
    whole = sum(row["is_whole"] for row in rows)
    yield f"{len(rows)} bugs, {whole} of them searched to the end, {sum(not row['named'] for row in rows)} without a cause"


if __name__ == "__main__":
    run(main)
