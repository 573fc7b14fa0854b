"""Every error jaxformer raises on purpose: one line that names the thing, the value found, the value wanted, and what to do."""

import errno
import os
import shlex

SYSTEM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)))
"""The operating system's reasons why a file cannot be written."""


REFUSED = errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE
"""Why the operating system does not read a file that may be whole."""
UNREADABLE = "cannot be read"
"""Begins what is said of that."""


class JaxformerError(Exception):
    """The root: `except JaxformerError` catches whatever jaxformer refuses."""


class ConfigError(JaxformerError, ValueError):
    """A configuration that cannot be built."""


class InputError(JaxformerError, ValueError):
    """Data given from outside: token ids, texts, files, flags."""


class CheckpointError(JaxformerError):
    """A run folder or a saved state that cannot be read or written."""


class ConversionError(JaxformerError, ValueError):
    """Weights of two models that do not fit together."""


class ParityError(JaxformerError, AssertionError):
    """Two implementations that should be equal and are not."""


class MissingPackageError(JaxformerError, ImportError):
    """A package of an extra that is not installed."""


class NonFiniteError(JaxformerError, ArithmeticError):
    """A loss or a gradient became NaN or infinite."""


def type_of(value: object) -> str:
    """Its type, as a sentence names it: a str, an int."""
    name = type(value).__name__
    return f"{'an' if name.startswith(('nd', *'aeioAEIO')) else 'a'} {name}"


def first_line(error: BaseException) -> str:
    """The first line of its message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def printable(text: str) -> str:
    """One line, in which nothing moves the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def quoted(path: object) -> str:
    """A path as a command that is printed has it: one word, which is no flag."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def why_unread(error: Exception) -> str:
    """What is said of an error while something was read: what the system refuses is no damage, and can be read later."""
    refused = isinstance(error, MemoryError) or getattr(error, "errno", None) in REFUSED
    return f"{UNREADABLE}: {first_line(error)}" if refused else first_line(error)


def why_unwritten(error: Exception) -> str:
    """The operating system's reason, which libraries hide in messages and types of their own."""
    message = getattr(error, "strerror", None) or first_line(error)
    return next((reason for reason in SYSTEM if reason in str(error)), message)
