"""Convert a model from one file format to another, and read the result back to check that no bit was lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxformer.checkpoints.hf import Checkpoint, model_of, unwrapped
from jaxformer.checkpoints.opened import Opened, cast, open_path
from jaxformer.checkpoints.written import write_folder
from jaxformer.convert.family import Family
from jaxformer.convert.mismatch import listed
from jaxformer.convert.rules import tensors_to_torch, to_torch
from jaxformer.convert.state_files import open_folder_state, open_state, weight_files, write_state
from jaxformer.errors import CheckpointError, InputError
from jaxformer.io.atomic import refuse_existing
from jaxformer.models import Model
from jaxformer.runs.folder import WEIGHTS

To = Literal["hf", "jax", "torch"]


@dataclass(frozen=True)
class Converted:
    """Converted model, with its source and its files."""

    source: Opened
    model: Model
    """Model as read back from the written files."""
    files: list[Path]
    """Files that were written."""
    state: Mapping[str, Any]
    """Tensors in the written files."""
    said: str
    """Verdict of the round trip."""


def convert(
    path: Path, out: Path, to: To, *, family: str | None = None, dtype: str | None = None, verifiable: bool = False
) -> Converted:
    """Convert the model at `path` into `out`, and read it back; CheckpointError if a bit was lost.

    If `verifiable`, raise InputError before anything is written unless there is a transformers model to compare with.
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
    del again, wanted
    return Converted(source, back.model, files, state, round_trip(source, state, back.model, dtype))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays have the same dtype, shape and bytes."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def round_trip(source: Opened, written: Mapping[str, Any], model: Model, dtype: str | None) -> str:
    """Report what became of the source's tensors: written unchanged, recovered from `model` (which was read back), or lost."""
    said = f"round trip: {len(written)} tensors, read again bit for bit"
    if source.checkpoint is None or dtype is not None:
        return said
    origin = open_folder_state(source.place) if source.place.is_dir() else open_state(source.place)
    same = {name for name, array in written.items() if name in origin and same_bits(array, origin[name])}
    if same:
        said += f"; {len(same)} are the source's, name and bits"
    rest = {own: array for name, (own, array) in zip(origin, unwrapped(origin).items(), strict=True) if name not in same}
    return "; ".join([said, *fates(source.checkpoint, source.family, rest, model)] if rest else [said])


def fates(source: Checkpoint, family: Family, tensors: Mapping[str, Any], model: Model) -> list[str]:
    """Return a phrase for each fate of the source's tensors that were not written unchanged."""
    owns, back = {name: own for own, name in source.names.items()}, to_torch(model, family)
    found: dict[str, list[str]] = {"renamed": [], "unneeded": [], "head": [], "lost": []}
    for name, array in tensors.items():
        own = owns.get(name, name)
        if own in back and same_bits(back[own], array):
            fate = "renamed"
        elif name in source.unused:
            fate = "head"
        else:
            fate = "lost" if own in back or family.why_ignored(own) is None else "unneeded"
        found[fate].append(name)
    heads = ", ".join(sorted({source.unused[name] for name in found["head"]}))
    phrases = {
        "renamed": "{n} of the source are written under other names; back again: bitwise equal",
        "unneeded": "{n} of the source are left out, as the model computes or ignores them: {names}",
        "head": f"not in it: {{n}} of the source, of a head for {heads}: {{names}}",
        "lost": "LOST: {n} of the source: {names}",
    }
    return [phrases[fate].format(n=len(names), names=listed(names)) for fate, names in found.items() if names]
