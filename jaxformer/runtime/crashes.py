"""Crashes of processes: functions in a child process, whose end the caller learns and survives; what a process was running, and
a second attempt without compiled programs.

The function, its arguments and its result are pickled. Importing this module imports no jax.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.runtime.xla_options import jaxlib_release

START = "import sys; sys.path[:] = {path!r}; from jaxformer.runtime.crashes import serve; serve({reading}, {writing})"
LENGTH_BYTES = 8
"""Number of bytes of the payload's length, which is sent before the payload."""


class Outcome(NamedTuple):
    """Result of a function that ran in a child process."""

    value: Any = None
    error: str = ""
    """Reason why there is no value: 'SIGSEGV', 'an exit with code 3', 'a time limit of 60 s', or the first line of an error."""
    crashed: bool = False
    """True if the process ended, not only the function."""
    raised: Exception | None = None
    """Exception that the function raised, if it can be pickled."""


@contextmanager
def lifeline() -> Iterator[int]:
    """Context manager that yields a pipe for a child, which passes it to `end_with_parent`."""
    reading, writing = os.pipe()  # the system closes `writing` when this process ends, for whatever reason
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def end_with_parent(lifeline: int) -> None:
    """Kill this child process when the parent closes its end of the pipe, as the system does even after SIGKILL of the
    parent."""

    def watch() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


class Child:
    """Process that runs `pickle.loads(payload)()` and is started at once; `outcome` waits for it. If `quiet`, it prints
    nothing."""

    def __init__(self, payload: bytes, environment: Mapping[str, str] | None = None, *, quiet: bool = True):
        theirs, self.writing = os.pipe()
        self.reading, answer = os.pipe()
        self.errors = subprocess.DEVNULL if quiet else tempfile.TemporaryFile()  # noqa: SIM115  closed in `outcome`
        code = START.format(path=sys.path, reading=theirs, writing=answer)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(theirs, answer),
            env={**os.environ, **(environment or {})},
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=self.errors,
        )
        os.close(theirs)
        os.close(answer)
        self.payload = payload

    def outcome(self, seconds: float | None = None) -> Outcome:
        """Wait for the function's result, up to a time limit; the process has ended afterwards."""
        try:
            outcome = self._outcome(seconds)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.writing)
        if not isinstance(self.errors, int):
            with self.errors:
                self.errors.seek(0)
                said = self.errors.read().decode(errors="replace")
            sys.stderr.write("" if outcome.crashed else said)  # after a crash it is pages of XLA's output
        return outcome

    def _outcome(self, seconds: float | None) -> Outcome:
        with suppress(BrokenPipeError), open(self.writing, "wb", closefd=False) as pipe:
            pipe.write(len(self.payload).to_bytes(LENGTH_BYTES))
            pipe.write(self.payload)
        timer = _Timer(self.process, seconds)
        with timer, open(self.reading, "rb") as pipe:
            answer = pipe.read()
        if timer.is_over:
            return Outcome(error=f"a time limit of {seconds:.0f} s", crashed=True)
        if (code := self.process.wait()) or not answer:
            return Outcome(error=name_of(code), crashed=True)
        value, error, raised = pickle.loads(answer)
        return Outcome(value, error, raised=pickle.loads(raised))


class _Timer:
    """Timer that kills a process after some seconds; None: never."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float | None):
        self.process, self.is_over = process, False
        self.timer = threading.Timer(seconds, self.end) if seconds else None

    def end(self) -> None:
        self.is_over = True
        self.process.kill()

    def __enter__(self) -> None:
        if self.timer:
            self.timer.start()

    def __exit__(self, *_: Any) -> None:
        if self.timer:
            self.timer.cancel()


def name_of(code: int) -> str:
    """Describe how a process ended, by its exit code: 'SIGSEGV', 'an exit with code 3'; for SIGKILL with its usual cause."""
    if code >= 0:
        return f"an exit with code {code}"
    name = signal.Signals(-code).name
    return f"{name}, as the system does where memory is short" if name == "SIGKILL" else name


def serve(reading: int, writing: int) -> None:
    """Read a payload, run it in this child process, and send back its value, or its error as one line."""
    with open(reading, "rb", closefd=False) as pipe:
        payload = pipe.read(int.from_bytes(pipe.read(LENGTH_BYTES)))
    end_with_parent(reading)
    try:
        answer = (pickle.loads(payload)(), "", pickle.dumps(None))
    except Exception as error:
        answer = (None, f"{type(error).__name__}: {error}".split("\n")[0], _pickled(error))
    with open(writing, "wb") as pipe:
        pipe.write(pickle.dumps(answer))
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)  # threads of a faulty program would keep Python from exiting


def _pickled(error: Exception) -> bytes:
    """Pickle an error; None if it cannot be unpickled."""
    with suppress(Exception):
        pickle.loads(answer := pickle.dumps(error))
        return answer
    return pickle.dumps(None)


def exported(f: Callable[..., Any], *given: Any) -> tuple[bytes, Sequence[np.ndarray]]:
    """Export f, traced for `given`: return the program as bytes and the arrays in `given`, arguments of `run_exported`."""
    import jax
    import jax.export

    leaves, tree = jax.tree.flatten(given)
    program = jax.export.export(jax.jit(lambda *leaves: f(*jax.tree.unflatten(tree, leaves))))(*leaves)
    return bytes(program.serialize()), [np.asarray(leaf) for leaf in leaves]


def run_exported(program: bytes, arrays: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    """Run an exported program, compiled with these options."""
    import jax
    import jax.export

    call = jax.export.deserialize(bytearray(program)).call
    return np.asarray(jax.jit(call, compiler_options=dict(options) or None)(*arrays))


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
