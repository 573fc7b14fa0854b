"""A table of numbers that is given and never trained. No jax is imported here."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.errors import ConfigError, first_line, type_of
from jaxformer.validation.fields import check_file


class FixedTable:
    """Numbers of shape (rows, columns) that stand in a configuration, and so in no model: compared by their content.

        config = GPTConfig(..., positions=FixedTable(torch_model.embed_positions.weight))

    It takes an array of numpy, jax or torch, or rows of numbers, and holds them as float64, which
    changes none of them. Its user casts it. ConfigError for anything but a table of finite numbers.
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
        """The table in a .npy file."""
        check_file(Path(path))
        try:
            array = np.lib.format.open_memmap(path, mode="r")  # mapped, its header is held against its size
            if array.dtype.kind not in "iuf":
                raise ValueError(f"its type is {array.dtype}")
        except Exception as error:  # numpy reads the header with Python's own tokenizer
            raise ConfigError(f"{path} holds no table: {first_line(error)}; give a .npy file of numpy.save") from None
        return cls(array)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._content[0]

    @property
    def array(self) -> np.ndarray:
        """The numbers, which cannot be written to."""
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
    """Of a torch parameter too, which numpy refuses while it is trained."""
    try:
        return np.asarray(numbers.detach().cpu() if hasattr(numbers, "detach") else numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a table cannot be made of {type_of(numbers)}: {error}") from None
