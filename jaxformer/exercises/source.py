"""Sources as modules: the torch side, from the package, and a learner's port, from its file."""

import linecache
import traceback
from pathlib import Path
from types import ModuleType

from jaxformer.errors import InputError, first_line

ABSENT = "torch", "transformers"
"""Packages that a port has to do without."""


def module_of(source: str, file: Path) -> ModuleType:
    """Run a source as a module. `file` is where reports say that it stands; it is not read."""
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    linecache.cache[str(file)] = len(source), None, source.splitlines(keepends=True), str(file)
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def import_port(file: Path) -> ModuleType:
    """Run a learner's port; InputError if the file is not there."""
    try:
        source = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}; `jaxformer exercise N` writes it") from None
    return module_of(source, file)


def line_in(error: BaseException, file: Path) -> str:
    """Format an error as 'exercises/05/port.py:12: NameError: ...', with the innermost line of that file."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        number = error.lineno
    else:
        number = next(
            (frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == str(file)), None
        )
    where = f"{file}:{number}" if number else str(file)
    if isinstance(error, ModuleNotFoundError) and error.name in ABSENT:
        return f"{where}: {error.name} is imported, and a port has to compute without it"
    return f"{where}: {type(error).__name__}: {first_line(error)}"
