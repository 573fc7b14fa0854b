"""Errors that jaxformer raises on purpose: one line that names the thing, the value found, the value wanted and the remedy."""

import errno
import os
import shlex
from collections.abc import Sequence
from unicodedata import category

SYSTEM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)))
"""Messages of the operating system for a file that cannot be written."""


FULL = os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)
"""Messages of `SYSTEM` for a lack of disk space, which end once space is freed."""
REFUSED = errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE
"""Error numbers with which the operating system fails to read a file that may be intact."""
UNREADABLE = "cannot be read"
"""Prefix of messages about unreadable files."""
LISTED = 3
"""Number of names that an error lists before it only counts them."""


class JaxformerError(Exception):
    """Base class of jaxformer's errors: `except JaxformerError` catches every refusal.

    The message is one line, except for ParityError, whose message may be a whole report.
    """

    def __str__(self) -> str:
        said = super().__str__()
        return said if isinstance(self, ParityError) else printable(said)


class ConfigError(JaxformerError, ValueError):
    """Configuration that cannot be built."""


class InputError(JaxformerError, ValueError):
    """Invalid data from outside: token ids, texts, files, flags."""


class CheckpointError(JaxformerError):
    """Run folder or saved state that cannot be read or written."""


class ConversionError(JaxformerError, ValueError):
    """Weights of two models that do not fit together."""


class ParityError(JaxformerError, AssertionError):
    """Two implementations that should be equal and are not."""


class MissingPackageError(JaxformerError, ImportError):
    """Optional package, part of an extra, that is not installed."""


class NonFiniteError(JaxformerError, ArithmeticError):
    """Loss or gradient that became NaN or infinite."""


def type_of(value: object) -> str:
    """Return the type of a value with its article, for a message: "a str", "an int"."""
    name = type(value).__name__
    return f"{'an' if name.startswith(('nd', *'aeioAEIO')) else 'a'} {name}"


def message_of(error: BaseException) -> str:
    """Return an error's message, or the name of its type if `str(error)` raises.

    A user's own exception class may fail, or even exit, in `__str__`.
    """
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (message_of(error).splitlines() or [type(error).__name__])[0][:200]


def printable(text: str) -> str:
    """Escape everything unprintable, so that the text is one line and cannot move the terminal's cursor."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Join the first names, and say how many more there are."""
    return separator.join(map(printable, names[:LISTED])) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def shown(text: str) -> str:
    """Escape control characters in a text that a model generated, except newlines and tabs."""
    return "".join(printable(letter) if category(letter) == "Cc" and letter not in "\n\t" else letter for letter in text)


def quoted(path: object) -> str:
    """Quote a path for a printed shell command: one word, which cannot be taken for a flag."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def why_unread(error: Exception) -> str:
    """Describe an error that occurred while a file was read.

    If the operating system refused (see `REFUSED`), the message begins with `UNREADABLE`: the file is not known to be corrupt,
    and a later attempt may succeed.
    """
    refused = isinstance(error, MemoryError) or getattr(error, "errno", None) in REFUSED
    return f"{UNREADABLE}: {first_line(error)}" if refused else first_line(error)


def why_unwritten(error: Exception) -> str:
    """Return the operating system's reason for a failed write, which libraries hide in messages and types of their own."""
    own = getattr(error, "strerror", None)
    return own or next((reason for reason in SYSTEM if reason in str(error)), first_line(error))


def with_room(error: Exception) -> str:
    """Return the hint that --resume continues once disk space is free, for an error due to a full disk; else ""."""
    return "; --resume goes on once there is room" if any(reason in str(error) for reason in FULL) else ""
