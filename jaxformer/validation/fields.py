"""Checks of single values: a one-line message names the field, the value found and the value wanted."""

import difflib
import errno
import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any

from jaxformer.errors import CheckpointError, ConfigError, InputError, first_line, type_of

LARGEST_SIZE = 2**31 - 1
"""Largest size: sizes index int32 arrays."""
LARGEST_SEED = 2**64 - 1
MOST, LEAST = 3.4e38, 1.2e-38
"""Largest and smallest positive numbers: numbers are used in float32, where smaller ones may be 0."""
MOST_BYTES = 2**27
"""Maximum size of a file that holds neither weights nor texts; a config.json with a table of numbers has 20 million bytes."""
MOST_DIVISORS = 4096
"""Largest divisor that a refusal lists."""


def check_size(name: str, value: object, least: int = 1, most: int = LARGEST_SIZE) -> None:
    """Check for an integer from `least` to `most`, by default of int32; True and 2.0 are refused."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is not a whole number; give an integer of at least {least}")
    if not least <= value <= most:
        raise ConfigError(f"{name} = {value} is out of range; give an integer from {least} to {most}")


def whole(value: Any) -> Any:
    """Convert an integer of numpy to Python's int; return anything else unchanged."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def check_number(
    name: str,
    value: object,
    least: float,
    below: float = math.inf,
    *,
    most: float | None = None,
    open_below: bool = False,
) -> None:
    """Check for a finite number in [least, below), or in [least, most]; with `open_below`, above least."""
    end = f"{below:g})" if most is None else f"{most:g}]"
    interval = f"{'(' if open_below else '['}{least:g}, {end}"
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST < value < MOST:
        raise ConfigError(f"{name} = {value!r:.30} is not a finite number; give one in {interval}")
    if isinstance(value, int) and abs(value) > LARGEST_SIZE:
        raise ConfigError(f"{name} = {value!r:.30} does not fit int32; write it as a number with a point")
    if open_below and least < value < least + LEAST:
        raise ConfigError(f"{name} = {value:g} may be 0 in float32; give a number of at least {LEAST:g}")
    inside = least <= value < below if most is None else least <= value <= most
    if not inside or (open_below and value == least):
        raise ConfigError(f"{name} = {value:g} is out of range; give a number in {interval}")


def check_choice(name: str, value: object, choices: Iterable[str], *, elsewhere: Mapping[str, str] = {}) -> None:
    """Check that a value is one of `choices`.

    The message suggests the nearest choice, or for a name that is used `elsewhere`, jaxformer's name for it.
    """
    choices = list(choices)
    if value not in choices:
        near = nearest(value, choices)
        hint = f"did you mean {near!r}?" if near else f"choose one of {', '.join(choices)}"
        hint = f"here it is {elsewhere[str(value)]}" if str(value) in elsewhere else hint
        raise ConfigError(f"{name} = {value!r} is not known; {hint}")


def nearest(value: object, choices: Iterable[str]) -> str | None:
    """Return the choice with the most similar spelling, ignoring case; None if none is similar."""
    lowered = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(str(value).lower(), lowered, 1)
    return lowered[near[0]] if near else None


def check_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Check the type of a value; `wanted` says in the message what to give instead."""
    if not isinstance(value, kind):
        shown = f" = {value!r:.40}" if isinstance(value, str | int | float | None) else ""
        raise InputError(f"{name}{shown} is {type_of(value)}; give {wanted}")


def check_function(name: str, value: object, wanted: str) -> None:
    """Check that a value can be called."""
    if not callable(value):
        raise InputError(f"{name} = {value!r:.40} cannot be called; give {wanted}")


def check_seed(seed: object) -> None:
    """Check for a random seed: an integer from 0 to 2^64 - 1."""
    check_size("seed", seed, least=0, most=LARGEST_SEED)


def check_path(name: str, path: Any) -> Path:
    """Return a path or a string as a Path that the system accepts; an empty string, which would be the current folder, is
    refused."""
    check_kind(name, path, (str, os.PathLike), "a path")
    if path == "":
        raise InputError(f"{name} is empty; give a path")
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"{name} = {str(path)!r:.40} is not a path ({why}); give another") from None
    return Path(path)


def check_file(path: Path) -> Path:
    """Raise InputError for a pipe or a device, which may never end; a missing file is left to the caller that opens it."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(f"{path} is a pipe or a device; give a file")
    return path


def read_small(path: Path) -> bytes:
    """Read a whole file that is never large; CheckpointError if it is, InputError for a pipe or a device."""
    if (size := check_file(path).stat().st_size) > MOST_BYTES:
        raise CheckpointError(f"{path} has {size:,} bytes, where {MOST_BYTES:,} are the most: it is damaged; put it back")
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, where a file belongs; move it away")
    return path.read_bytes()


def parsed(text: bytes | str) -> Any:
    """Parse JSON; ValueError has a clear message for what Python's parser does not read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            raise
        raise ValueError("it holds a number of too many digits") from None


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings, without null values; empty if the file does not exist."""
    try:
        return without_null(parsed(read_small(path)) if path.is_file() else {})
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from None


def without_null(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a value."""
    return {key: value for key, value in settings.items() if value is not None}


def check_flag(name: str, value: object) -> None:
    """Check for True or False; other truthy or falsy values are refused."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is not True or False")


def check_divides(part_name: str, part: int, whole_name: str, whole: int) -> None:
    """Check that `part` divides `whole`."""
    if whole % part:
        divisors = ", ".join(str(n) for n in range(1, min(whole, MOST_DIVISORS) + 1) if whole % n == 0)
        raise ConfigError(f"{part_name} = {part} does not divide {whole_name} = {whole}; choose one of {divisors}")
