"""Errors of orbax: its own messages are silenced, and a corrupted or unfinished checkpoint gives a single message of ours."""

import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxformer.errors import REFUSED, CheckpointError, JaxformerError, message_of

LOGGERS = "", "absl", "asyncio"
"""Loggers of orbax, and of errors in Python's asyncio that nobody waited for."""


@contextmanager
def silent_orbax() -> Iterator[None]:
    """Context manager that silences orbax's logs and warnings."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def end_of_fault() -> None:
    """Clean up inside `silent_orbax` after orbax has failed: unfinished objects warn when collected, so collect them now.

    Its threads may hold some of these longer, so the loggers drop what they say of orbax from now on.
    """
    for name in LOGGERS:
        logging.getLogger(name).addFilter(is_not_orbax)
    gc.collect()


def is_not_orbax(record: logging.LogRecord) -> bool:
    """True if a record is neither orbax's nor about an error in its code, or in tensorstore's, with which it reads and
    writes.
    """
    _, error, trace = record.exc_info or (None, None, None)
    files = (record.pathname, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)))
    return "tensorstore" not in str(error) and not any(map(_is_orbax, files))


def tell_unraisable(found: Any) -> None:
    """Report an error as Python does, except those of orbax's threads that still answer reads of a corrupted checkpoint."""
    is_late = isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"
    if not is_late and not _is_orbax(getattr(getattr(found.object, "cr_code", None), "co_filename", "")):
        sys.__unraisablehook__(found)


def _is_orbax(file: str) -> bool:
    return "/orbax/checkpoint/" in file.replace("\\", "/")


PARTS = "_CHECKPOINT_METADATA", "state", "state/_METADATA", "state/manifest.ocdbt"
"""Files that every checkpoint has."""
NOT_ITS_FAULT = "RESOURCE_EXHAUSTED", *map(os.strerror, REFUSED)


@contextmanager
def read_from(path: str, what: str) -> Iterator[None]:
    """Context manager in which an error means that `what` is damaged, unless the error is the system's or our own."""
    try:
        yield
    except (JaxformerError, OSError, MemoryError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise damage(path, what) from None
        raise
    except Exception as error:
        if any(reason in message_of(error) for reason in NOT_ITS_FAULT):
            raise
        raise damage(path, what) from None


def damage(path: str, what: str) -> CheckpointError:
    """Return an error that names the first missing file, or, if none is missing, what is damaged."""
    place = Path(path)
    if not place.is_dir():
        return CheckpointError("it is no folder")
    missing = next((name for name in PARTS if not (place / name).exists()), None)
    return CheckpointError(f"its {what} damaged" if missing is None else f"it has no {missing}")
