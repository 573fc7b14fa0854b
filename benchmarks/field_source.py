"""Plant bugs in other people's code: replace a text of a source file while a model is made and compared."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from unittest import mock

from jaxformer.errors import InputError

NEXT = re.compile(r"^(?:class|def|@)", re.MULTILINE)
"""Start of the next definition."""


def planted(file: str, where: str, old: str, new: str) -> AbstractContextManager[None]:
    """Run with `new` in the place of `old` in the class or function `where` of the module `file`."""
    return with_source(file, replaced(inspect.getsource(importlib.import_module(file)), where, old, new))


@contextmanager
def with_source(file: str, text: str, path: str = "") -> Iterator[None]:
    """Run with another source of the module `file`, and its new classes and functions in all modules of the package.

    `path` is the file that the source seems to come from; '' for the module's own.
    """
    module = importlib.import_module(file)
    changed = ModuleType(file)
    vars(changed).update({name: vars(module)[name] for name in ("__file__", "__package__", "__spec__", "__loader__")})
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, {file: changed}))
        exec(compile(text, path or str(module.__file__), "exec"), vars(changed))
    other = {id(value): vars(changed)[name] for name, value in vars(module).items() if made_here(value, file)}
    package, held = file.partition(".")[0], []
    for name, each in list(sys.modules.items()):
        if name.partition(".")[0] == package and isinstance(each, ModuleType):
            held += [(vars(each), key, value) for key, value in list(vars(each).items()) if id(value) in other]
    for names, key, value in held:
        names[key] = other[id(value)]
    try:
        yield
    finally:
        for names, key, value in held:
            names[key] = value


def made_here(value: object, file: str) -> bool:
    """True for a class or function that is defined in a module."""
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == file


def replaced(source: str, where: str, old: str, new: str) -> str:
    """Replace a text in one class or function of a source; InputError unless the old text occurs exactly once."""
    if not (start := re.search(rf"^(?:class|def) {where}\b", source, re.MULTILINE)):
        raise InputError(f"the source has no {where}: its release is another one")
    end = NEXT.search(source, start.end())
    head, body, tail = source[: start.end()], source[start.end() : end and end.start()], source[end.start() :] if end else ""
    if body.count(old) != 1:
        raise InputError(f"{where} has {old!r} {body.count(old)} times, wanted once: its release is another one")
    return head + body.replace(old, new) + tail
