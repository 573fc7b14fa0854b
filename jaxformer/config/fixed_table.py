"""Table of numbers that is given and never trained. Imports no jax."""

from pathlib import Path
from typing import Any

import numpy as np

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
