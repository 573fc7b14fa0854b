"""Files that hold a folder's weights, and what their headers say of the tensors. jax is not imported."""

from pathlib import Path
from typing import NamedTuple

from jaxformer.errors import CheckpointError, first_line, listed
from jaxformer.validation.fields import MOST_BYTES, check_file, parsed, read_small

SAFETENSORS, PICKLES = (".safetensors",), (".bin", ".pt", ".pth")
"""Suffixes of files that hold a state."""
WHOLE, INDEX = ("model.safetensors", "pytorch_model.bin"), ".index.json"
"""File names of a model in transformers: for a model in several files, the index has the same name with `INDEX` added."""


class Tensor(NamedTuple):
    """Tensor as a safetensors header describes it."""

    dtype: str
    """Name of the format, as F32 or BF16."""
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int
    """Offsets of its first byte and after its last one, in the file."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the tensors of a folder; CheckpointError if there are none, or if one of the index is
    missing."""
    for name in WHOLE:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}{INDEX}").is_file():
            return _shards(index, sorted(set(weight_map(index).values())))
    looked = ", ".join(f"{name}, {name}{INDEX}" for name in WHOLE)
    raise CheckpointError(f"{folder} holds no weights: it has none of {looked}")


def _shards(index: Path, names: list[str]) -> list[Path]:
    """Return the files that an index names; CheckpointError unless all are existing files in the index's own folder."""
    odd = [f"{name!r:.60} is not a plain name of a weights file" for name in names if not _plain(name)]
    odd += [f"{name} is missing" for name in names if _plain(name) and not (index.parent / name).is_file()]
    if odd:
        raise CheckpointError(f"{index}: {listed(odd)}; copy the whole folder again")
    return [index.parent / name for name in names]


def _plain(name: str) -> bool:
    """True if a name is that of a weights file in the folder itself, on every operating system."""
    return name.endswith(SAFETENSORS + PICKLES) and not any(character in name for character in "/\\:\0")


def weight_map(index: Path) -> dict[str, str]:
    """Read an index: names of tensors -> names of files."""
    try:
        found = parsed(read_small(index))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} is not an index of weights: {first_line(error)}") from None
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise CheckpointError(f"{index} is not an index of weights: its weight_map is {found!r:.50}")
    return found


def header(path: Path) -> dict[str, Tensor]:
    """Read the header of a safetensors file: names of tensors -> types and shapes; CheckpointError if it has none."""
    try:
        with check_file(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MOST_BYTES:
                raise ValueError(f"its header would have {size:,} bytes")
            described = parsed(file.read(size))
        described.pop("__metadata__", None)
        offsets = {name: [8 + size + offset for offset in it["data_offsets"]] for name, it in described.items()}
        return {name: Tensor(it["dtype"], tuple(it["shape"]), path, *offsets[name]) for name, it in described.items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {first_line(error)}") from None
