"""`jaxformer exercise`: ports with one planted bug each, to mend; the comparison judges."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from jaxformer.cli.flags import parse
from jaxformer.errors import InputError, MissingPackageError
from jaxformer.runtime.compilation_cache import CacheFlag

if TYPE_CHECKING:
    from jaxformer.parity.report.report import Report


@dataclass(frozen=True, kw_only=True)
class Exercise(CacheFlag):
    """List the exercises, or write one: a JAX port with one planted bug, and its torch side. Mend the port, and check it. Exit
    code of --check 0: solved, 1: not yet, 2: the port could not be run."""

    number: tyro.conf.Positional[int | None] = None
    """Number of the exercise, from 1. None: the list."""
    check: bool = False
    """Compare your port with torch."""
    hint: bool = False
    """Give the next hint: the check that differs, the module, torch's side of the cause, the cause."""
    solution: bool = False
    """Show what has to change in your port."""
    folder: Path = Path("exercises")
    """Folder of all exercises; each has one in it, named by its number."""

    def __post_init__(self) -> None:
        asked = [f"--{name}" for name in ("check", "hint", "solution") if getattr(self, name)]
        if len(asked) > 1:
            raise InputError(f"{' and '.join(asked)} are asked for at once; give one of them")
        if asked and self.number is None:
            raise InputError(f"{asked[0]} is of one exercise; give its number, as in jaxformer exercise 1 {asked[0]}")


def main(arguments: list[str]) -> int:
    """List, write, check, hint or solve; return the exit code."""
    flags = parse(Exercise, arguments, prog="jaxformer exercise")
    from jaxformer.exercises.catalogue import find
    from jaxformer.exercises.folder import begin, folder_of, listing, solution

    if flags.number is None:
        print(f"{listing(flags.folder)}\nnext: jaxformer exercise 1")
        return 0
    number = flags.number
    exercise, folder = find(number), folder_of(flags.folder, number)
    if flags.solution:
        print(f"{solution(folder, exercise)}\nthe bug: {exercise.kind}")
        return 0
    if flags.check or flags.hint:
        return judged(flags, number, folder)
    begin(flags.folder, number, exercise)
    print(f"{exercise.about}\nwritten: {folder} (port.py with one bug, original.py, task.md)")
    print(f"next: mend {folder / 'port.py'}, then {again(flags, '--check')}")
    return 0


def judged(flags: Exercise, number: int, folder: Path) -> int:
    """Check the learner's port, or give a hint about it; return the exit code."""
    if find_spec("torch") is None:
        raise MissingPackageError("torch is not installed, and the other side of an exercise; pip install 'jaxformer[torch]'")
    from jaxformer.exercises.catalogue import find
    from jaxformer.exercises.folder import keep_report, kept_report, progress_in, record
    from jaxformer.exercises.hints import LEVELS
    from jaxformer.exercises.judge import compared, differs
    from jaxformer.parity.runs.session import SECONDS
    from jaxformer.runtime.compilation_cache import use_cache

    if flags.hint and (kept := kept_report(folder)):
        return told(folder, kept)
    exercise, progress = find(number), progress_in(folder)
    apart = differs(exercise, folder)  # before the port is imported here
    use_cache(flags.cache)
    report = compared(exercise, folder, search_seconds=SECONDS if flags.hint else 0)
    if report.status == "failed":
        print(report.verdict)
        return report.exit_code
    if report.status == "equal" and not apart:
        record(folder, replace(progress, solved=report.verdict))
        where = f", as in {exercise.field}" if exercise.field else ""
        print(f"{report.verdict}\nSOLVED: {exercise.kind}{where} · {progress.hints} of {len(LEVELS)} hints")
        return 0
    if report.status == "equal":
        print(f"NOT SOLVED: the comparison says equal, but a process without torch computes other numbers: {apart}")
        return 1
    if flags.hint:
        keep_report(folder, report)
        return told(folder, report)
    checks = [stage for stage in report.stages if stage.status in ("equal", "different")]
    wrong = sum(stage.status == "different" for stage in checks)
    print(f"DIFFERENT: {wrong} of {len(checks)} checks differ\nnext: mend it, or {again(flags, '--hint')}")
    return report.exit_code


def told(folder: Path, report: "Report") -> int:
    """Give the next hint about the port of this report; return the exit code."""
    from jaxformer.exercises.folder import progress_in, record
    from jaxformer.exercises.hints import LEVELS, hint

    progress = progress_in(folder)
    level = min(progress.hints + 1, len(LEVELS))
    record(folder, replace(progress, hints=level))
    print(hint(report, level))
    return 0


def again(flags: Exercise, flag: str) -> str:
    """Write the next command."""
    folder = "" if flags.folder == Path("exercises") else f" --folder {flags.folder}"
    return f"jaxformer exercise {flags.number}{folder} {flag}"
