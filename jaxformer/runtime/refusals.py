"""Errors that end a command, each with a one-line message and an exit code."""

import sys

from jaxformer.errors import JaxformerError, first_line, message_of, printable
from jaxformer.runtime.environment import jax_fault


def refusal(error: Exception) -> tuple[str, int] | None:
    """Return the one-line message and the exit code of an error that ends a command; None for a bug in jaxformer."""
    match error:
        case JaxformerError():
            return printable(str(error)), getattr(error, "exit_code", 2)
        case RuntimeError() if "RESOURCE_EXHAUSTED" in message_of(error):
            return f"out of memory: {message_of(error).splitlines()[0]}; take a smaller batch or model", 2
        case Warning():  # raised because of PYTHONWARNINGS or -W
            return printable(f"{message_of(error)} (a warning, which PYTHONWARNINGS or -W makes an error)"), 2
        case MemoryError():
            return f"out of memory: {first_line(error)}; take a smaller batch or model", 2
        case BrokenPipeError():
            return "", 141  # the reader of the pipe has closed it
        case ValueError() if sys.stdout.closed:
            return "standard output is closed, by code that ran here; take that out", 2
        case OSError():
            place = f"{error.filename}: " if error.filename else "standard output or a file: "
            return printable(f"{place}{error.strerror or error}"), 2
        case _ if fault := jax_fault(error):
            return printable(fault), 2
    return None


def is_verbose() -> bool:
    """True if the command line begins with -v."""
    return sys.argv[1:2] == ["-v"]
