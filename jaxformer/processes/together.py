"""Inside of `together` this process is one of a group: whatever ends one ends all. No jax is imported here."""

import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from jaxformer.errors import first_line
from jaxformer.flags import is_verbose, refusal
from jaxformer.processes.group import Group, enter
from jaxformer.processes.link import Seat, meet
from jaxformer.processes.watch import Limits, Watch
from jaxformer.signals import cleaned_up

GRACE = 2.0
"""Seconds that a process waits with an error of its own: where another one is gone, its connection says so meanwhile."""


@contextmanager
def together(seat: Seat, facts: Mapping[str, Any], *, wait: float, limits: Limits) -> Iterator[Group]:
    """Meet the others; in the end all wait for each other.

    InputError, in every process, where one does not come in so many seconds, or is not alike in a fact. An error inside is
    told to the others, and ends the process at once: in Python's own way libraries would wait for the others.
    """
    group = Group(seat, meet(seat, facts, wait))
    enter(group)
    Watch(group, limits).start()
    with cleaned_up(group.ended_by_signal):
        try:
            yield group
        except BaseException as error:
            fail(group, error)
        group.finish()


def fail(group: Group, error: BaseException) -> NoReturn:
    """End this process for an error, and all others with it."""
    if isinstance(error, SystemExit):
        if not error.code:
            group.end("it ended in the middle with exit code 0", 1)
        group.end(f"it exited with {error.code}", error.code if isinstance(error.code, int) else 1)
    refused = refusal(error) if isinstance(error, Exception) else None
    if refused is None:
        time.sleep(GRACE)
    if refused is None or is_verbose():
        traceback.print_exception(error)
    group.end(*refused or (f"{type(error).__name__}: {first_line(error)}" if isinstance(error, Exception) else repr(error), 1))
