"""A model from one kind of files into another, read again to see that no bit was lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxformer.convert.mismatch import listed
from jaxformer.convert.rules import tensors_to_torch
from jaxformer.convert.state_files import open_folder_state, open_state, weight_files, write_state
from jaxformer.errors import CheckpointError, InputError
from jaxformer.folders.hf import model_of
from jaxformer.folders.opened import Opened, cast, open_path
from jaxformer.folders.written import write_folder
from jaxformer.models import Model
from jaxformer.training.runs import WEIGHTS
from jaxformer.whole_files import refuse_existing

To = Literal["hf", "jax", "torch"]


@dataclass(frozen=True)
class Converted:
    """A model that was converted, and what it was converted from and to."""

    source: Opened
    model: Model
    """As it was read again."""
    files: list[Path]
    """All that was written."""
    state: Mapping[str, Any]
    """The tensors in them."""
    said: str
    """The verdict of the round trip."""


def convert(
    path: Path, out: Path, to: To, *, family: str | None = None, dtype: str | None = None, verifiable: bool = False
) -> Converted:
    """Write a model into `out`, and read it again; CheckpointError where a bit was lost.

    `verifiable`: InputError, before anything is written, where there is no model of transformers' to compare with.
    """
    refuse_existing(out)
    source = open_path(path, family=family)
    if verifiable and (source.checkpoint is None or not source.place.is_dir()):
        raise InputError(f"--verify compares with transformers' own model, and {path} is not a folder of transformers'")
    model = source.model if dtype is None else cast(source.model, dtype)
    if to == "torch":
        write_state(out, tensors_to_torch(model, source.family))
        files, state = [out], open_state(out)
        back = replace(source, model=model_of(state, model.config, source.family))
    else:
        write_folder(model, out, "hf" if to == "hf" else "jax", source)
        files = sorted(out.iterdir())
        state, back = open_state(weight_files(out)[0] if to == "hf" else out / WEIGHTS), open_path(out)
    again = tensors_to_torch(back.model, back.family)
    wanted = tensors_to_torch(model, back.family)
    if lost := [name for name, array in wanted.items() if not same_bits(array, again[name])]:
        raise CheckpointError(f"{out} was written, and reads otherwise: {listed(lost)}; the disk or the memory is faulty")
    return Converted(source, back.model, files, state, round_trip(source, state, dtype))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Of one type, shape and content."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def round_trip(source: Opened, written: Mapping[str, Any], dtype: str | None) -> str:
    """What became of the source's tensors, beside what was read again."""
    said = f"round trip: {len(written)} tensors, read again bit for bit"
    if source.checkpoint is None or dtype is not None:
        return said
    origin = open_folder_state(source.place) if source.place.is_dir() else open_state(source.place)
    same = [name for name, array in written.items() if name in origin and same_bits(array, origin[name])]
    left = [name for name in origin if name not in written]
    return f"{said}; {len(same)} are the source's, name and bits" + (
        f"; {len(left)} of the source are not in it" if left else ""
    )
