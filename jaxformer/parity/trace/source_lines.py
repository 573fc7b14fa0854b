"""Lines of the user's own files that errors come from, those among them that JAX raises out of callbacks."""

import importlib.util
import inspect
import logging
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = ("jaxformer", "jax", "jaxlib", "flax", "optax", "torch", "numpy")
INSTALLED = ("site-packages", "dist-packages")
TYPED_IN = ("<stdin>", "<ipython")
"""Names of the user's code that has no file; names of generated code begin with < too."""


def line_of(error: BaseException) -> str:
    """'port.py:12': the innermost line that no library has, or else none of `LIBRARIES`; '' where there is none."""
    return innermost([traceback.extract_tb(each.__traceback__) for each in chain(error)])


def line_here() -> str:
    """The same of the code that is running."""
    frames = traceback.StackSummary.extract(traceback.walk_stack(None), lookup_lines=False)
    return innermost([frames[::-1]])


def innermost(frames: Sequence[Sequence[traceback.FrameSummary]]) -> str:
    """The innermost line of the first frames that have one."""
    for known in (is_users, lambda name: not is_library(name)):
        for found in frames:
            if lines := [frame for frame in found if known(frame.filename)]:
                return shown(lines[-1].filename, lines[-1].lineno or 0)
    return ""


def definition_of(f: Callable[..., Any]) -> str:
    """'port.py:12', where a function of the user's begins; '' for one of a library's."""
    code = getattr(inspect.unwrap(f), "__code__", None)
    return shown(code.co_filename, code.co_firstlineno) if code is not None and is_users(code.co_filename) else ""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@cache
def is_users(name: str) -> bool:
    """Whether a file of code is in no library, not even in one that is not known."""
    return not is_library(name) and not any(part in INSTALLED for part in Path(name).parts)


@cache
def is_library(name: str) -> bool:
    """Whether a file of code is one of `LIBRARIES` or Python's; generated code counts as if it was."""
    if name.startswith("<"):
        return not name.startswith(TYPED_IN)
    return any(is_below(name, folder) for folder in library_folders())


@cache
def library_folders() -> tuple[str, ...]:
    """Of `LIBRARIES`, wherever they are installed, and of Python."""
    found = (importlib.util.find_spec(name) for name in LIBRARIES)
    folders = (os.path.dirname(spec.origin) for spec in found if spec is not None and spec.origin)
    return (*folders, *map(sysconfig.get_path, ("stdlib", "platstdlib")))


def is_below(name: str, folder: str) -> bool:
    """Whether a file lies in a folder."""
    return os.path.abspath(name).startswith(folder + os.sep)


def shown(name: str, line: int) -> str:
    """A path relative to this folder, where it lies inside."""
    inside = not name.startswith("<") and is_below(name, os.getcwd())
    return f"{os.path.relpath(name) if inside else name}:{line}"


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
