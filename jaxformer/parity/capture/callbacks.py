"""Errors in functions that JAX calls back: it logs each, and raises one whose message is a traceback."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from jaxformer.parity.capture.source_lines import shown

LOGGERS = "jax._src.callback", "jax._src.debugging"


@contextmanager
def untold() -> Iterator[None]:
    """Inside, JAX logs no error of a callback: what it raises is told."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def fault_in_callback(text: str) -> str:
    """'a callback fails: SystemExit: 0 (at port.py:12)', of JAX's message; '' where it is of something else."""
    if "calling callback: Traceback" not in text:
        return ""
    last = re.search(r'File "([^"]+)", line (\d+), in [^\n]*\n(?: .*\n)*(\w.*)', text[text.rindex('  File "') :])
    return f"a callback fails: {last[3]} (at {shown(last[1], int(last[2]))})" if last else "a callback fails"
