"""What a process was running when it ended, and a second try without compiled programs."""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxformer.runtime.child import Outcome
from jaxformer.runtime.xla_options import jaxlib_release

NOTES = "JAXFORMER_NOTES"
"""Environment variable: a file in which a process says what it is running, for whoever sees it end."""
CRASHED = "JAXFORMER_CRASHED"
"""Environment variable: how a compiled program has ended another process. None is compiled then."""

ENDED = "its end"
"""The note of a process that has come to its end, and was not ended by the code that it runs."""

Run = Callable[[dict[str, str]], Outcome]
"""run(environment): a process with these variables beside its own, to its end."""


def note(what: str) -> None:
    """Say what runs from here on."""
    if file := os.environ.get(NOTES):
        with suppress(OSError), open(file, "w", encoding="utf-8") as notes:
            notes.write(what)


def has_ended(environment: Mapping[str, str]) -> bool:
    """True if the process that had these variables came to its end."""
    with suppress(OSError):
        return Path(environment[NOTES]).read_text("utf-8") == ENDED
    return False


class Crash(NamedTuple):
    """How a process ended, and what it was running."""

    how: str
    """'SIGSEGV', or 'an exit with code 3'."""
    where: str
    """'layers.0.norm', or 'the compiled program'."""

    @property
    def is_signal(self) -> bool:
        """True if a signal ended it, and not the user's code by itself."""
        return self.how.startswith("SIG")

    def __str__(self) -> str:
        return f"the JAX program {'crashed' if self.is_signal else 'ended'} the process ({self.how}) while running {self.where}"


def twice(run: Run) -> tuple[Outcome, str]:
    """What a process came to, and ''; where it crashed, a second one, in which operations run one by one, and of a second crash
    what there is to say."""
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
