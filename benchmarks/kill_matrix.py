"""Which operators of the search name which planted bugs: every explainer is asked, and the search does not stop at a cause.

    field-venv/bin/python -m benchmarks.kill_matrix matrix.jsonl
    field-venv/bin/python -m benchmarks.kill_matrix matrix.jsonl --only llama

`benchmarks/field.py` tells the environment. The file gets a line for each bug of `benchmarks.field_bugs`; a bug whose line is
there is left out, so that a run which was stopped goes on. Of a bug, the first difference that is explained at all is looked at
whole. Printed are, for each operator: the bugs that it names, those that no other names, the ports of these, and what its
proposals cost. An operator that names no bug by itself, or bugs of one port alone, has to be worth its lines otherwise.
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
    """One JSON object a line; made where it is not there."""
    only: str = ""
    """Bugs whose title has this in it."""
    part: tuple[int, int] = (0, 1)
    """Share the bugs with other processes: which of them this is, and how many they are."""


@dataclass
class Row:
    """One bug."""

    bug: str
    named: Counter[str] = field(default_factory=Counter)
    """By operators: how many of their proposals explain it."""
    tried: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    is_whole: bool = False
    """Whether a difference was looked at to the end."""

    def explain(self, difference: Difference) -> Diagnosis:
        """What an explanation gives, with every explainer asked until a difference has a cause."""
        if self.named:
            return ordinary(difference)
        with mock.patch.object(Search, "_first_found", lambda search: self.all_found(search)):
            found = [found for each in explainers.EXPLAINERS if each.fits(difference) and (found := each.explain(difference))]
        several = [Diagnosis((each,)) if isinstance(each, Candidate) else each for each in found]
        self.named.update(cause.operator for each in several for cause in each.causes() if cause.operator not in self.named)
        return several[0] if several else Diagnosis()

    def all_found(self, search: Search) -> list[Candidate]:
        """What every proposal explains, as far as the budget goes."""
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
                self.seconds[name] += time.perf_counter() - start
        self.is_whole = True
        return best_of(found)


ordinary = explainers.explain


@contextmanager
def explained_by(row: Row) -> Iterator[None]:
    """Inside, explanations are noted in a row."""
    with mock.patch.object(explainers, "explain", row.explain):
        yield


def main(arguments: list[str]) -> None:
    """A line in the file for each bug; the table."""
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
    """The rows so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(rows: list[dict[str, Any]]) -> Iterable[str]:
    """One line for each operator, those that name the fewest bugs by themselves first."""
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
