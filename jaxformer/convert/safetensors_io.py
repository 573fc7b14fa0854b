"""Weights on disk: safetensors, under the PyTorch twin's names, so that either framework loads the file as it is."""

from pathlib import Path

import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax, to_torch
from jaxformer.errors import CheckpointError, ConversionError, why_unwritten
from jaxformer.pytree import named_leaves
from jaxformer.whole_files import written_whole


def save_weights(path: Path, model: PyTree) -> None:
    """Write every tensor; the file appears whole or not at all. CheckpointError where it cannot be written."""
    try:
        with written_whole(path) as unfinished:
            safetensors.numpy.save_file(to_torch(model, TWIN), unfinished)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written: {why_unwritten(error)}") from None


def load_weights(path: Path, like: PyTree) -> PyTree:
    """A model of the structure of `like`, which may be abstract; CheckpointError for a file that does not hold it."""
    try:
        model = to_jax(safetensors.numpy.load_file(path), like, TWIN)
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
