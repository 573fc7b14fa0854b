"""Weights on disk as safetensors, by the names of the PyTorch twin, so that either framework loads the file directly."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax, to_torch
from jaxformer.errors import CheckpointError, ConversionError, listed, why_unwritten
from jaxformer.io.atomic import written_whole
from jaxformer.pytree import named_leaves
from jaxformer.validation.fields import check_file

Written = Callable[[Path], AbstractContextManager[Path]]
TYPES = {"BF16": jnp.bfloat16, "BOOL": bool} | {
    f"{kind.upper()}{8 * size}": f"{kind}{size}" for kind in "fiu" for size in (1, 2, 4, 8)
}
"""Names of types in the format -> numpy's."""


def save_weights(path: Path, model: PyTree, written: Written = written_whole) -> None:
    """Write every tensor by an atomic write; CheckpointError if the file cannot be written.

    `written(path)` yields the path to write to: for a file of a run, `run.manifest.renewed`.
    """
    try:
        with written(path) as unfinished:
            save_tensors(unfinished, to_torch(model, TWIN))
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written: {why_unwritten(error)}") from None


def save_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write a new file with the default permissions: safetensors alone makes it readable for its owner only."""
    path.touch()
    mode = path.stat().st_mode
    safetensors.numpy.save_file(dict(tensors), path, metadata)
    path.chmod(mode)


def load_weights(path: Path, like: PyTree) -> PyTree:
    """Load a model of the structure of `like`, which may be abstract; CheckpointError for a file that does not hold it."""
    try:
        tensors = map_tensors(path)
        check_counts(str(path), like, tensors)
        model = to_jax(tensors, like, TWIN)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from None
    except ConversionError as error:
        raise CheckpointError(f"{path}: {error}") from None
    for name, leaf in named_leaves(model).items():
        if not np.isfinite(leaf).all():
            raise CheckpointError(f"{path}: {name} holds NaN or infinity; the file is damaged, or its training was")
    return model


def check_counts(place: str, like: PyTree, tensors: Mapping[str, np.ndarray]) -> None:
    """Raise CheckpointError if a configuration describes a far larger model than the tensors hold, before its layers are
    counted."""
    wanted, found = (sum(math.prod(it.shape) for it in each) for each in (named_leaves(like).values(), tensors.values()))
    if wanted > 16 * found + 2**24:
        raise CheckpointError(f"{place} holds {found:,} numbers, and its config.json describes a model of {wanted:,}")


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """Memory-map every tensor of a file by its name, read-only: numbers are read when they are used, and are not held twice.

    OSError or SafetensorError if it is not a complete safetensors file; CheckpointError for types that no model has.
    """
    try:
        with safetensors.safe_open(check_file(path), "np"):  # checks the header against the file's size
            file = np.asarray(np.memmap(path, np.uint8, "r"))
    except MemoryError:
        raise CheckpointError(f"{path} has {path.stat().st_size:,} bytes, and there is no memory for them") from None
    start = 8 + int.from_bytes(file[:8].tobytes(), "little")
    header, data = json.loads(file[8:start].tobytes()), file[start:]
    header.pop("__metadata__", None)
    odd = [f"{name} is of type {tensor['dtype']}" for name, tensor in header.items() if tensor["dtype"] not in TYPES]
    if odd:
        raise CheckpointError(f"{path}: {listed(odd)}; models hold F16, BF16, F32 or F64")
    return {
        name: data[slice(*tensor["data_offsets"])].view(TYPES[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in header.items()
    }
