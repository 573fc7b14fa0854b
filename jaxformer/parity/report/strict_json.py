"""Dataclasses as strict JSON, and back again with every value checked.

JSON has no infinity and no NaN; they are written as the strings 'inf', '-inf' and 'nan'.
"""

import json
import math
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from jaxformer.errors import InputError

T = TypeVar("T")
NO_NUMBERS = ("inf", "-inf", "nan")
WORDS = {float: "a number", int: "an integer", str: "a text", bool: "true or false", list: "a list", dict: "an object"}
"""Names of the expected types in error messages."""


OLDER = {"guilty": "diverging", "unnoticed": "not_covered", "line": "tolerance"}
"""Old names of fields -> today's, so that older reports can still be read."""


def dump(value: Any, **more: str) -> str:
    """Serialise a dataclass of numbers, texts, lists, dicts and other such dataclasses, with `more` beside its fields."""
    return json.dumps(plain(value) | more, indent=1, allow_nan=False)


def load(kind: type[T], text: str, *, ignored: str) -> T:
    """Parse what `dump` wrote, without the key `ignored`; InputError in one line for anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"the text is not a {kind.__name__.lower()}: it is not JSON; give what to_json wrote") from None
    if isinstance(values, dict):
        values.pop(ignored, None)
    return read(kind, values, kind.__name__.lower())


def plain(value: Any) -> Any:
    """Convert a value to types that JSON knows."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def read(kind: Any, value: Any, where: str) -> Any:
    """Convert a parsed JSON value to `kind`, the annotation of a field; `where` names the value in errors."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return read_fields(kind, value, where)
    if outer is list and isinstance(value, list):
        return [read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if outer is dict and isinstance(value, dict):
        return {name: read(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if outer is Literal and isinstance(value, str) and value in inner:
        return value
    if NoneType in inner:
        return None if value is None else read(inner[0], value, where)
    if kind is float and (value in NO_NUMBERS if isinstance(value, str) else type(value) in (float, int)):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise wrong(where, value, " or ".join(map(repr, inner)) if outer is Literal else WORDS[outer])


def read_fields(kind: Any, value: Any, where: str) -> Any:
    """Build a dataclass from its fields: fields without a default are required, unknown ones are refused."""
    if not isinstance(value, dict):
        raise wrong(where, value, "an object")
    kinds = get_type_hints(kind)
    value = {name if name in kinds else OLDER.get(name, name): item for name, item in value.items()}
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    if missing := [name for name in kinds if name in needed - set(value)]:
        raise InputError(f"{where} has no {missing[0]}; give what to_json wrote")
    if unknown := [name for name in value if name not in kinds]:
        raise InputError(
            f"{where} has a field {shortened(unknown[0])} that is not known; give what to_json of this version wrote"
        )
    return kind(**{name: read(kinds[name], item, f"{where}.{name}") for name, item in value.items()})


def wrong(where: str, value: Any, wanted: str) -> InputError:
    """Return the error for a value of the wrong type."""
    return InputError(f"{where} = {shortened(value)} is not {wanted}; give what to_json wrote")


def shortened(value: Any) -> str:
    """Format a value in at most 40 characters, on one line."""
    said = json.dumps(value)
    return said if len(said) <= 40 else f"{said[:37]}..."
