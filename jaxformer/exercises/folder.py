"""Folder of an exercise: the port to mend, the torch side to read, the task, and how far the learner is."""

import difflib
import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import jaxformer
from jaxformer.errors import InputError, why_unwritten
from jaxformer.exercises.catalogue import EXERCISES, LEVELS, Exercise
from jaxformer.exercises.judge import ORIGINAL, PORT
from jaxformer.parity.report.report import Report

TASK, PROGRESS, DIAGNOSIS = "task.md", "progress.json", "diagnosis.json"
MORE = {"optimizer": "some steps of training", "steps": "each step with the cache"}
"""Function of the torch side -> what is compared besides, in words."""
TEXT = """# Exercise {number}: {model}

{about}

`{original}` is the PyTorch side, `{port}` its port to JAX, with one bug. Find it and mend `{port}`.

- `make(weights)` gives the JAX model from torch's weights, `call(model, ...)` runs it. Both are traced by `jax.jit`: use `jnp`.
- `jaxformer exercise {number} --check` compares both in float64: outputs, gradients, and every module by itself{more}.
- `jaxformer exercise {number} --hint` gives a hint, each time the next of four.
- `jaxformer exercise {number} --solution` shows what has to change.

`{original}` is a copy to read: the judgement uses the one in the package.
"""


@dataclass(frozen=True)
class Progress:
    """Progress of a learner."""

    hints: int = 0
    """Number of hints that were given."""
    solved: str = ""
    """Verdict with which the exercise was solved; '' if it is not."""


def folder_of(root: Path, number: int) -> Path:
    """Return the folder of an exercise."""
    return root / f"{number:02d}"


def begin(root: Path, number: int, exercise: Exercise) -> Path:
    """Write the folder of an exercise; InputError if it is there already, since it may hold the learner's work."""
    folder = folder_of(root, number)
    if folder.exists():
        raise InputError(f"{folder} is there already, and may hold your work; go on in it, or move it away to begin anew")
    more = "".join(f", and {words}" for name, words in MORE.items() if exercise.defines(name))
    names = {"original": ORIGINAL, "port": PORT, "more": more}
    task = TEXT.format(number=number, model=exercise.model, about=exercise.about, **names)
    try:
        folder.mkdir(parents=True)
        for name, text in ((PORT, exercise.port), (ORIGINAL, exercise.original), (TASK, task)):
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {why_unwritten(error)}; give another --folder") from None
    return folder


def progress_in(folder: Path) -> Progress:
    """Read how far a learner is; a file that is damaged counts as none."""
    try:
        return Progress(**json.loads((folder / PROGRESS).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return Progress()


def record(folder: Path, progress: Progress) -> None:
    """Write how far a learner is."""
    try:
        (folder / PROGRESS).write_text(json.dumps(asdict(progress)), "utf-8")
    except OSError as error:
        raise InputError(f"{folder / PROGRESS} cannot be written: {why_unwritten(error)}; free it") from None


def kept_report(folder: Path) -> Report | None:
    """Read the report that was kept of the port as it is now; None if there is none, or it is damaged."""
    try:
        kept = json.loads((folder / DIAGNOSIS).read_text("utf-8"))
        return Report.from_json(kept["report"]) if kept["port"] == digest_of(folder) else None
    except (OSError, ValueError, TypeError, LookupError, InputError):
        return None


def keep_report(folder: Path, report: Report) -> None:
    """Keep the report of the port as it is now, so that the next hint about it takes no comparison."""
    with suppress(OSError):  # the next hint compares again
        kept = {"port": digest_of(folder), "report": report.to_json()}
        (folder / DIAGNOSIS).write_text(json.dumps(kept), "utf-8")


def digest_of(folder: Path) -> str:
    """Return the sha256 of a learner's port and of the version of jaxformer."""
    return hashlib.sha256((folder / PORT).read_bytes() + jaxformer.__version__.encode()).hexdigest()


def solution(folder: Path, exercise: Exercise) -> str:
    """Return the lines that have to change, as a diff: of the learner's port if it is there, else of the port with the bug."""
    file = folder / PORT
    text = file.read_text("utf-8", errors="replace") if file.is_file() else exercise.port
    lines = difflib.unified_diff(text.splitlines(), exercise.solution.splitlines(), str(file), "right", n=1, lineterm="")
    return "\n".join(lines) or f"{file} is the right port"


def listing(root: Path) -> str:
    """List the exercises by level, with what is begun and solved."""
    lines = []
    for level, words in LEVELS.items():
        lines.append(f"{words}:")
        for number, each in enumerate(EXERCISES, 1):
            if each.level == level:
                folder = folder_of(root, number)
                state = "solved" if progress_in(folder).solved else "begun" if folder.is_dir() else ""
                field = f" ({each.field})" if each.field else ""
                lines.append(f"  {number:2}  {state:6}  {each.model:10}  {each.about}{field}")
    return "\n".join(lines)
