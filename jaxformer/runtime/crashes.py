"""Crashes of a process: what it was running, and a second attempt without compiled programs."""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxformer.runtime.child import Outcome
from jaxformer.runtime.xla_options import jaxlib_release

NOTES = "JAXFORMER_NOTES"
"""Environment variable: file in which a process notes what it is running, for the process that sees it end."""
CRASHED = "JAXFORMER_CRASHED"
"""Environment variable: how a compiled program ended an earlier process. If it is set, nothing is compiled."""

ENDED = "its end"
"""Note of a process that has reached its own end, rather than being ended by the code it runs."""

Run = Callable[[dict[str, str]], Outcome]
"""Function run(environment) that runs a process with these additional variables, to its end."""


def note(what: str) -> None:
    """Write down what is running from now on, if `NOTES` names a file."""
    if file := os.environ.get(NOTES):
        with suppress(OSError), open(file, "w", encoding="utf-8") as notes:
            notes.write(what)


def has_ended(environment: Mapping[str, str]) -> bool:
    """True if the process that had these variables reached its own end."""
    with suppress(OSError):
        return Path(environment[NOTES]).read_text("utf-8") == ENDED
    return False


class Crash(NamedTuple):
    """Crash of a process: how it ended, and what it was running."""

    how: str
    """Signal or exit code: 'SIGSEGV', 'an exit with code 3'."""
    where: str
    """Module or program that was running: 'layers.0.norm', 'the compiled program'."""

    @property
    def is_signal(self) -> bool:
        """True if a signal ended the process, rather than an exit in the user's code."""
        return self.how.startswith("SIG")

    def __str__(self) -> str:
        return f"the JAX program {'crashed' if self.is_signal else 'ended'} the process ({self.how}) while running {self.where}"


def twice(run: Run) -> tuple[Outcome, str]:
    """Run a process, and after a crash run it again without compiled programs, its operations one by one.

    Returns the outcome and "", or the outcome and a description of the crash if the second process crashed too.
    """
    outcome, crash = _noted(run, {})
    if not outcome.crashed:
        return outcome, ""
    outcome, crash = _noted(run, {CRASHED: str(crash)})
    if not outcome.crashed:
        return outcome, ""
    release = ".".join(map(str, jaxlib_release()))
    known = f"`jaxformer doctor` lists the known reports of jaxlib {release}"
    return outcome, f"{crash}; {known if crash.is_signal else 'take that out'}"


def _noted(run: Run, environment: dict[str, str]) -> tuple[Outcome, Crash]:
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        outcome = run({**environment, NOTES: str(notes)})
        where = notes.read_text("utf-8") if notes.exists() else "what comes before the models"
    return outcome, Crash(outcome.error, where)
