"""Standard streams of a command, which somebody may have closed, or stop reading."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from jaxformer.runtime.shutdown import tell_held

_kept: list[Any] = []


def open_closed_streams() -> None:
    """Open those that are closed. Else the next file that is opened has their number, and what is meant for them is written
    into it."""
    for name, mode, flag in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_WRONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), mode, encoding="utf-8"))


@contextmanager
def kept_streams() -> Iterator[None]:
    """Inside, `restore_streams` gives back those of now."""
    _kept[:] = sys.stdout, sys.stderr
    try:
        yield
    finally:
        _kept.clear()


def restore_streams() -> None:
    """Where code of the user's has put others in their place, or closed the one for errors: what is to be said goes there."""
    if _kept:
        sys.stdout, sys.stderr = _kept
    with suppress(OSError):
        if sys.stderr.closed:
            sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)


def standard_output() -> TextIO:
    """The one of now. Where it fails, work that is held is told, and comes to its end by itself; else OSError names it."""
    return cast(TextIO, _Output(sys.stdout))


class _Output:
    """A stream, but for what it does with faults."""

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
    """What could not be printed is not tried again, as when Python ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
