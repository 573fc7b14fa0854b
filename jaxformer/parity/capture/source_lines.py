"""The line of the user's own files that an error comes from."""

import importlib.util
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBRARIES = ("jaxformer", "jax", "jaxlib", "flax", "optax", "torch", "numpy")
INSTALLED = ("site-packages", "dist-packages")
TYPED_IN = ("<stdin>", "<ipython")
"""Names of the user's code that has no file; names of generated code begin with < too."""


def line_of(error: BaseException) -> str:
    """'port.py:12': the innermost line that no library has, or else none of `LIBRARIES`; '' where there is none."""
    frames = [[(frame.filename, frame.lineno or 0) for frame in frames_of(each)] for each in chain(error)]
    ours = (*libraries(), *standard())
    for known in (is_users, lambda name: not is_below(name, ours)):
        for found in frames:
            if lines := [line for line in found if known(line[0])]:
                return shown(*lines[-1])
    return ""


def definition_of(f: Callable[..., Any]) -> str:
    """'port.py:12', where a function of the user's begins; '' for one of a library's."""
    code = getattr(inspect.unwrap(f), "__code__", None)
    return shown(code.co_filename, code.co_firstlineno) if code is not None and is_users(code.co_filename) else ""


def whole(error: BaseException) -> str:
    """The traceback, with those of its causes."""
    return "".join(traceback.format_exception(error))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def frames_of(error: BaseException) -> traceback.StackSummary:
    """The outermost first."""
    return traceback.extract_tb(error.__traceback__)


def is_users(name: str) -> bool:
    """Whether a file of code is in no library."""
    if name.startswith("<"):
        return name.startswith(TYPED_IN)
    return not any(part in INSTALLED for part in Path(name).parts) and not is_below(name, (*libraries(), *standard()))


def is_below(name: str, folders: tuple[str, ...]) -> bool:
    """Whether a file lies in one of these; generated code counts as if it did."""
    if name.startswith("<"):
        return not name.startswith(TYPED_IN)
    return any(os.path.abspath(name).startswith(folder + os.sep) for folder in folders)


def libraries() -> tuple[str, ...]:
    """Folders of the libraries, wherever they are installed."""
    found = (importlib.util.find_spec(name) for name in LIBRARIES)
    return tuple(os.path.dirname(spec.origin) for spec in found if spec is not None and spec.origin)


def standard() -> tuple[str, ...]:
    """Python's own folders."""
    return tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def shown(name: str, line: int) -> str:
    """A path relative to this folder, where it lies inside."""
    inside = is_below(name, (os.getcwd(),)) and not name.startswith("<")
    return f"{os.path.relpath(name) if inside else name}:{line}"
