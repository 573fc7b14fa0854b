"""orbax's errors: its own messages are kept silent, and a damaged or unfinished checkpoint is told in one message of ours."""

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
"""Where orbax logs, and where Python logs an error that nobody waited for."""


@contextmanager
def quiet_orbax() -> Iterator[None]:
    """Silences what it logs and warns of."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def end_of_fault() -> None:
    """To be called inside `quiet_orbax`, where orbax has failed: what it left unfinished warns when it is collected, now.

    Its threads may hold some of it longer, so the loggers drop from now on what they say of it.
    """
    for name in LOGGERS:
        logging.getLogger(name).addFilter(is_not_orbax)
    gc.collect()


def is_not_orbax(record: logging.LogRecord) -> bool:
    """Whether neither orbax logs this, nor somebody else of an error in its code, or in that of tensorstore, which it reads and
    writes with."""
    _, error, trace = record.exc_info or (None, None, None)
    files = (record.pathname, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)))
    return "tensorstore" not in str(error) and not any(map(_is_orbax, files))


def tell_unraisable(found: Any) -> None:
    """As Python does, but for orbax's threads, which answer reads of a damaged checkpoint when nobody listens any more."""
    is_late = isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"
    if not is_late and not _is_orbax(getattr(getattr(found.object, "cr_code", None), "co_filename", "")):
        sys.__unraisablehook__(found)


def _is_orbax(file: str) -> bool:
    return "/orbax/checkpoint/" in file.replace("\\", "/")


PARTS = "_CHECKPOINT_METADATA", "state", "state/_METADATA", "state/manifest.ocdbt"
"""What every checkpoint has."""
NOT_ITS_FAULT = "RESOURCE_EXHAUSTED", *map(os.strerror, REFUSED)


@contextmanager
def read_from(path: str, what: str) -> Iterator[None]:
    """Inside, an error means that this is damaged, if it is not the system's or our own."""
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
    """Names the first file that is missing; if none is, what is damaged."""
    place = Path(path)
    if not place.is_dir():
        return CheckpointError("it is no folder")
    missing = next((name for name in PARTS if not (place / name).exists()), None)
    return CheckpointError(f"its {what} damaged" if missing is None else f"it has no {missing}")
