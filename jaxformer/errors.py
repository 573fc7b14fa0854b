"""Every error jaxformer raises on purpose: one line that names the thing, the value found, the value wanted, and what to do."""

import errno
import os
import shlex
from unicodedata import category

SYSTEM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)))
"""The operating system's reasons why a file cannot be written."""


FULL = os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)
"""Those of them that end once there is room."""
REFUSED = errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE
"""Why the operating system does not read a file that may be whole."""
UNREADABLE = "cannot be read"
"""Begins what is said of that."""


class JaxformerError(Exception):
    """The root: `except JaxformerError` catches whatever jaxformer refuses. It is one line; a report of ParityError is more."""

    def __str__(self) -> str:
        said = super().__str__()
        return said if isinstance(self, ParityError) else printable(said)


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


def message_of(error: BaseException) -> str:
    """Its message. Code of the user's may write it, and may fail there, or end the process: then the name of its type."""
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of its message."""
    return (message_of(error).splitlines() or [type(error).__name__])[0][:200]


def printable(text: str) -> str:
    """One line, in which nothing moves the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def shown(text: str) -> str:
    """A text that a model wrote, whose ends of lines and tabs stay as they are; nothing else in it moves the cursor."""
    return "".join(printable(letter) if category(letter) == "Cc" and letter not in "\n\t" else letter for letter in text)


def quoted(path: object) -> str:
    """A path as a command that is printed has it: one word, which is no flag."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def why_unread(error: Exception) -> str:
    """What is said of an error while something was read: what the system refuses is no damage, and can be read later."""
    refused = isinstance(error, MemoryError) or getattr(error, "errno", None) in REFUSED
    return f"{UNREADABLE}: {first_line(error)}" if refused else first_line(error)


def why_unwritten(error: Exception) -> str:
    """The operating system's reason, which libraries hide in messages and types of their own."""
    own = getattr(error, "strerror", None)
    return own or next((reason for reason in SYSTEM if reason in str(error)), first_line(error))


def with_room(error: Exception) -> str:
    """What a run says more of an error that ends once its disk has room; else nothing."""
    return "; --resume goes on once there is room" if any(reason in str(error) for reason in FULL) else ""
