"""Standard streams of a command, which may be closed, or whose reader may stop reading."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from jaxformer.runtime.shutdown import tell_held

_kept: list[Any] = []


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null: else the next opened file gets a stream's number, and that stream's output."""
    for name, mode, flag in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_WRONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), mode, encoding="utf-8"))


@contextmanager
def kept_streams() -> Iterator[None]:
    """Context manager: within it, `restore_streams` restores the current standard streams."""
    _kept[:] = sys.stdout, sys.stderr
    try:
        yield
    finally:
        _kept.clear()


def restore_streams() -> None:
    """Restore the streams of `kept_streams` after the user's code, and reopen standard error if it was closed."""
    if _kept:
        sys.stdout, sys.stderr = _kept
    with suppress(OSError):
        if sys.stderr.closed:
            sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)


def standard_output() -> TextIO:
    """Return a wrapper of the current standard output.

    If a write fails, held work is told, and finishes by itself; without held work, the OSError names standard output.
    """
    return cast(TextIO, _Output(sys.stdout))


class _Output:
    """Stream whose write errors are handled as `standard_output` describes."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with self._told():
            self._stream.write(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = "standard output"
            lead_nowhere(self._stream)
            if not tell_held(error):
                raise


def lead_nowhere(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that unprinted output is not tried again, as Python does at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
