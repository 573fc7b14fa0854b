"""Configurations: frozen dataclasses created from keywords or from JSON values. Imports no jax."""

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from jaxformer.config.fixed_table import FixedTable
from jaxformer.errors import ConfigError

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def configuration(kind: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass; ConfigError for an unknown field suggests the nearest name."""
    made: Any = dataclass(frozen=True, kw_only=True)(kind)
    original: Callable[..., None] = made.__init__
    known = [field.name for field in fields(made)]

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        for name in (name for name in values if name not in known):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"{made.__name__} has no field {name}; {hint}")
        original(self, *args, **values)

    made.__init__ = checked
    return made


def from_dict(kind: type[T], values: Any) -> T:
    """Create a dataclass from its JSON values; TypeError or ConfigError if they do not fit."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{values!r:.50} is no {kind.__name__}")
    hints = get_type_hints(kind)
    return kind(**{name: restored(hints.get(name), value) for name, value in values.items()})


def restored(hint: Any, value: Any) -> Any:
    """Convert a JSON value to a field's type: JSON has no dataclasses, paths, tables or tuples."""
    if isinstance(hint, type) and is_dataclass(hint):
        return from_dict(hint, value)
    if hint == Path | None and value is not None:
        return Path(value)
    if FixedTable in get_args(hint) and isinstance(value, list):
        return FixedTable(value)
    is_tuple = any(get_origin(each) is tuple for each in (hint, *get_args(hint)))
    return tuple(value) if is_tuple and isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Convert a value for JSON that `json.dumps` does not know (`json.dumps(default=plain)`)."""
    return value.array.tolist() if isinstance(value, FixedTable) else str(value)
