"""What a process was running when it ended, and a second try without compiled programs."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxformer.runtime.child import Outcome
from jaxformer.runtime.xla_options import jaxlib_release

NOTES = "JAXFORMER_NOTES"
"""Environment variable: a file in which a process says what it is running, for whoever sees it end."""
CRASHED = "JAXFORMER_CRASHED"
"""Environment variable: how a compiled program has ended another process. None is compiled then."""

Run = Callable[[dict[str, str]], Outcome]
"""run(environment): a process with these variables beside its own, to its end."""


def note(what: str) -> None:
    """Say what runs from here on."""
    if file := os.environ.get(NOTES):
        with suppress(OSError), open(file, "w", encoding="utf-8") as notes:
            notes.write(what)


class Crash(NamedTuple):
    """How a process ended, and what it was running."""

    how: str
    """'SIGSEGV'."""
    where: str
    """'layers.0.norm', or 'the compiled program'."""

    def __str__(self) -> str:
        return f"the JAX program crashed the process ({self.how}) while running {self.where}"


def twice(run: Run) -> tuple[Outcome, str]:
    """What a process came to, and ''; where it crashed, a second one, in which operations run one by one, and of a second crash
    what there is to say."""
    outcome, crash = _noted(run, {})
    if not outcome.crashed:
        return outcome, ""
    outcome, crash = _noted(run, {CRASHED: str(crash)})
    release = ".".join(map(str, jaxlib_release()))
    return outcome, f"{crash}; `jaxformer doctor` lists the known reports of jaxlib {release}" if outcome.crashed else ""


def _noted(run: Run, environment: dict[str, str]) -> tuple[Outcome, Crash]:
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        outcome = run({**environment, NOTES: str(notes)})
        where = notes.read_text("utf-8") if notes.exists() else "what comes before the models"
    return outcome, Crash(outcome.error, where)
