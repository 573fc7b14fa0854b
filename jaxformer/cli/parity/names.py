"""Load the user's objects named as `package.module:name`: functions, and the models or inputs that they return."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxformer.errors import InputError, JaxformerError, first_line, message_of


def load(name: str) -> Any:
    """Load the object with this name; modules in the current folder are found too."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError(f"{name!r} names no function; give it as package.module:function")
    sys.path.insert(0, "")
    try:
        with no_exit(name):
            return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(f"{name}: there is no module {error.name}; run in the folder that holds it, or install it") from None
    except AttributeError:
        raise InputError(f"{name}: module {module} has no {attribute}") from None
    finally:
        sys.path.remove("")


@contextmanager
def no_exit(name: str) -> Iterator[None]:
    """Context manager: user code that exits the process raises InputError, so that no exit code 0 passes for equality."""
    try:
        yield
    except SystemExit as error:
        raise InputError(f"{name} ends the process with sys.exit({error.code!r:.40}); take that out") from None
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{name} fails: {type(error).__name__}: {first_line(error)}") from error


def call(name: str) -> Any:
    """Call the function with this name, and return its result; InputError says where it failed."""
    with blamed(name):
        return load(name)()


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Context manager: any error of user code becomes an InputError that says where it occurred."""
    try:
        with no_exit(name):
            yield
    except JaxformerError:
        raise
    except Exception as error:
        from jaxformer.parity.trace.source_lines import line_of

        at = f" (at {place})" if (place := line_of(error)) else ""
        raise InputError(f"{name} fails: {type(error).__name__}: {message_of(error).strip().split(chr(10))[0]}{at}") from error


def model_and_call(name: str) -> tuple[Any, Callable[..., Any]]:
    """Return the model that the function returns, and the function that calls it on the inputs."""
    from jaxformer.parity.trace.reference import apply

    found = call(name)
    if found is None:
        raise InputError(f"{name} returns None; return the model, or a tuple: the model and a function that calls it")
    if not isinstance(found, tuple):
        return found, apply
    with blamed(name):
        given = [*found]
    if len(given) != 2 or not callable(given[1]):
        raise InputError(f"{name} returns a tuple of {len(given)}; return the model, or the model and a function that calls it")
    return given[0], given[1]
