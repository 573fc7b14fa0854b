"""Lines of the user's own files that errors come from, including errors that JAX raises out of callbacks."""

import importlib.util
import inspect
import logging
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

LIBRARIES = ("jaxformer", "jax", "jaxlib", "flax", "optax", "torch", "numpy")
INSTALLED = ("site-packages", "dist-packages")
TYPED_IN = ("<stdin>", "<ipython")
"""Prefixes of the file names of user code that has no file; names of generated code begin with < too."""


def line_of(error: BaseException) -> str:
    """Return the innermost line outside of all libraries, 'port.py:12', or else outside of `LIBRARIES`; '' if there is none."""
    return innermost([traceback.extract_tb(each.__traceback__) for each in chain(error)])


def line_here() -> str:
    """Return the innermost line of the user's code that is running, as `line_of` does."""
    frames = traceback.StackSummary.extract(traceback.walk_stack(None), lookup_lines=False)
    return innermost([frames[::-1]])


def innermost(frames: Sequence[Sequence[traceback.FrameSummary]]) -> str:
    """Return the innermost line of the first frames that have one."""
    for known in (is_users, lambda name: not is_library(name)):
        for found in frames:
            if lines := [frame for frame in found if known(frame.filename)]:
                return shown(lines[-1].filename, lines[-1].lineno or 0)
    return ""


def definition_of(f: Callable[..., Any]) -> str:
    """Return where a function of the user's begins, 'port.py:12'; '' for a library's function."""
    while isinstance(f, partial):  # Linen and Haiku bind a module to its method
        f = f.func
    code = getattr(inspect.unwrap(f), "__code__", None)
    return shown(code.co_filename, code.co_firstlineno) if code is not None and is_users(code.co_filename) else ""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@cache
def is_users(name: str) -> bool:
    """True if a file of code belongs to no library, not even to one that is not in `LIBRARIES`."""
    return not is_library(name) and not any(part in INSTALLED for part in Path(name).parts)


@cache
def is_library(name: str) -> bool:
    """True if a file of code belongs to `LIBRARIES` or Python's standard library; generated code counts as a library's."""
    if name.startswith("<"):
        return not name.startswith(TYPED_IN)
    return any(is_below(name, folder) for folder in library_folders())


@cache
def library_folders() -> tuple[str, ...]:
    """Return the folders of `LIBRARIES`, wherever they are installed, and of Python's standard library."""
    found = (importlib.util.find_spec(name) for name in LIBRARIES)
    folders = (os.path.dirname(spec.origin) for spec in found if spec is not None and spec.origin)
    return (*folders, *map(sysconfig.get_path, ("stdlib", "platstdlib")))


def is_below(name: str, folder: str) -> bool:
    """True if a file lies in a folder."""
    return os.path.abspath(name).startswith(folder + os.sep)


def shown(name: str, line: int) -> str:
    """Format a line, with a path relative to the working directory if the file is inside it."""
    inside = not name.startswith("<") and is_below(name, os.getcwd())
    return f"{os.path.relpath(name) if inside else name}:{line}"


LOGGERS = "jax._src.callback", "jax._src.debugging"


@contextmanager
def untold() -> Iterator[None]:
    """Context manager: JAX does not log errors of callbacks, since the raised error reports them."""
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
    """Describe the callback's error in JAX's message, 'a callback fails: SystemExit: 0 (at port.py:12)'; '' for another
    message."""
    if "calling callback: Traceback" not in text:
        return ""
    last = re.search(r'File "([^"]+)", line (\d+), in [^\n]*\n(?: .*\n)*(\w.*)', text[text.rindex('  File "') :])
    return f"a callback fails: {last[3]} (at {shown(last[1], int(last[2]))})" if last else "a callback fails"
