"""Configurations: frozen dataclasses created from keywords or from JSON values; and tables of numbers in them, which are given
and never trained. Imports no jax."""

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np

from jaxformer.config.shown import as_table
from jaxformer.errors import ConfigError, first_line, type_of
from jaxformer.validation.fields import check_file


class FixedTable:
    """Table of shape (rows, columns) that is part of a configuration, not of a model's parameters; compared by content.

        config = GPTConfig(..., positions=FixedTable(torch_model.embed_positions.weight))

    Accepts an array of numpy, jax or torch, or rows of numbers. The numbers are stored exactly, as float64; a model casts them
    where it uses them. ConfigError for anything but a table of finite numbers.
    """

    def __init__(self, numbers: Any):
        array = _float64(numbers)
        if array.ndim != 2 or not array.size:
            raise ConfigError(f"a table has shape {array.shape}; give (rows, columns)")
        if not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise ConfigError(f"a table has {array[row, column]} at [{row}, {column}]; give finite numbers")
        self._content = array.shape, array.tobytes()

    @classmethod
    def load(cls, path: str) -> "FixedTable":
        """Load the table of a .npy file."""
        check_file(Path(path))
        try:
            array = np.lib.format.open_memmap(path, mode="r")  # a memory map: numpy checks the header against the file's size
            if array.dtype.kind not in "iuf":
                raise ValueError(f"its type is {array.dtype}")
        except Exception as error:  # numpy reads the header with Python's own tokenizer, which may raise anything
            raise ConfigError(f"{path} holds no table: {first_line(error)}; give a .npy file of numpy.save") from None
        return cls(array)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self._content[0]

    @property
    def array(self) -> np.ndarray:
        """Numbers of the table, as a read-only float64 array."""
        return np.frombuffer(self._content[1]).reshape(self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedTable) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FixedTable":
        return self

    def __repr__(self) -> str:
        return f"FixedTable({self.shape[0]} x {self.shape[1]})"


def _float64(numbers: Any) -> np.ndarray:
    """Return numbers as float64, also those of a torch parameter that requires gradients, which numpy refuses."""
    try:
        return np.asarray(numbers.detach().cpu() if hasattr(numbers, "detach") else numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a table cannot be made of {type_of(numbers)}: {error}") from None


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def configuration(kind: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass; ConfigError for an unknown field suggests the nearest name.

    Notebooks show it as a table.
    """
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

    made.__init__, made._repr_html_ = checked, as_table
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
