"""Recorded reference in a folder: one environment writes it with torch, another compares with JAX and needs no torch.

manifest.json      the calls in their order, how many arrays each has, the environment, and the sha256 of both files
reference.safetensors   every array, by the name that the manifest gives
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jaxformer.convert.safetensors import save_tensors
from jaxformer.errors import InputError, first_line, why_unwritten
from jaxformer.io.atomic import new_folder
from jaxformer.io.checksums import SEAL, checksum, sealed, unsealed
from jaxformer.parity.numerics.metrics import Noise
from jaxformer.parity.trace.call_records import Record
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.draws import Draw
from jaxformer.parity.trace.reference import Perturbed, Reference, Rounding
from jaxformer.validation.fields import check_file, read_small

MANIFEST, ARRAYS = "manifest.json", "reference.safetensors"
FORMAT = 4
IN_TRAINING = 5
"""Format of a reference in training mode: it has draws, which older versions would leave out."""
OLDER = {"narrow": "low_precision", "unnoticed": "not_covered"}
"""Name in format 3 -> today's name; format 3 differs in nothing else."""
PARTS = ("inputs", "output", "input_gradients", "output_gradients")
"""Fields of a record, in their order; a gradient may be missing."""
NAMED = ("weights", "gradients", "buffers", "low_precision")
"""Fields of a reference that hold arrays by name."""
ROUNDING = ("run", "alone", "output")
"""Fields of `Rounding`."""
PLAIN = ("tied", "environment", "heads")
"""Fields of a reference that are stored as JSON."""


def save(reference: Reference, folder: Path) -> None:
    """Write a reference by an atomic write: the folder appears whole or not at all. InputError if it exists already."""
    write(folder, (MANIFEST, ARRAYS), _manifest(reference), _arrays(reference))


def write(folder: Path, files: tuple[str, str], manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a sealed manifest and arrays into a folder that appears whole or not at all; `files` are their names."""
    name, held = files
    try:
        with new_folder(folder) as unfinished:
            save_tensors(unfinished / held, {key: np.array(array, order="C") for key, array in arrays.items()})
            whole = sealed({**manifest, "arrays": checksum(unfinished / held)})
            (unfinished / name).write_text(json.dumps(whole, indent=1), "utf-8")
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{folder} cannot be written: {why_unwritten(error)}; give another name") from None


def load(folder: Path) -> Reference:
    """Read what `save` wrote; InputError for a folder that does not hold a reference."""
    with reading(folder):
        manifest = json.loads(read_small(folder / MANIFEST))
        arrays = safetensors.numpy.load_file(check_file(folder / ARRAYS))
        if manifest["format"] == 3:
            manifest, arrays = renamed(manifest), renamed(arrays)
        elif manifest["format"] not in (FORMAT, IN_TRAINING):
            raise InputError(f"{folder} is of format {manifest['format']}, this reads {FORMAT}; dump it again")
        elif SEAL in manifest or "arrays" in manifest:  # dumps of older versions have neither
            check_sealed(folder, ARRAYS, manifest)
        return _reference(manifest, arrays)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Context manager: a folder that cannot be read, or is not what was written, is an InputError of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror or error}; give a folder that dump wrote") from None
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise InputError(f"{folder} is damaged, or no dump ({first_line(error)}); dump it again") from None


def check_sealed(folder: Path, arrays: str, manifest: Mapping[str, Any]) -> None:
    """Raise ValueError if the manifest, or the file of that name, has changed since it was written."""
    unsealed(manifest)
    if checksum(folder / arrays) != manifest["arrays"]:
        raise ValueError(f"{arrays} was changed: its size or its sha256 differs")


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace names of format 3 by today's, in the part before a slash."""
    return {re.sub(r"^\w+", lambda found: OLDER.get(found[0], found[0]), name): value for name, value in values.items()}


def _arrays(reference: Reference) -> dict[str, np.ndarray]:
    arrays = {f"input/{i}": array for i, array in enumerate(reference.inputs)}
    arrays |= {"output": reference.output, "cotangent": reference.cotangent}
    for kind in NAMED:
        arrays |= {f"{kind}/{name}": array for name, array in getattr(reference, kind).items()}
    for number, record in enumerate(reference.calls.values()):
        for part in PARTS:
            arrays |= {f"call/{number}/{part}/{i}": array for i, array in enumerate(getattr(record, part)) if array is not None}
    return arrays


def _manifest(reference: Reference) -> dict[str, Any]:
    calls = [
        {"path": site.path, "call": site.call} | {part: len(getattr(record, part)) for part in PARTS}
        for site, record in reference.calls.items()
    ]
    return {
        "format": FORMAT if reference.draws is None else IN_TRAINING,
        "draws": None if reference.draws is None else [asdict(draw) for draw in reference.draws],
        "inputs": len(reference.inputs),
        **{kind: list(getattr(reference, kind)) for kind in NAMED},
        "calls": calls,
        **{kind: dict(getattr(reference, kind)) for kind in PLAIN},
        "not_covered": reference.not_covered,
        "frozen": sorted(reference.frozen),
        "left_out": reference.left_out,
        "outputs": reference.outputs,
        "padding": dict(reference.padding),
        "keeps_buffers": reference.keeps_buffers,
        **{kind: _rows(getattr(reference.rounding, kind)) for kind in ROUNDING},
    }


def _rows(perturbed: Perturbed) -> list[list[Any]]:
    """Return the noise of each array as rows for JSON, with null for infinity, which JSON lacks."""
    return [
        [*key.site, key.part, key.number, *(each if np.isfinite(each) else None for each in (n.size, n.peak))]
        for key, n in perturbed.items()
    ]


def _perturbed(rows: list[list[Any]]) -> Perturbed:
    sizes = [[np.inf if each is None else each for each in row[4:]] for row in rows]
    return {ArrayKey(Site(*row[:2]), *row[2:4]): Noise(*both) for row, both in zip(rows, sizes, strict=True)}


def _reference(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Reference:
    calls = {}
    for number, call in enumerate(manifest["calls"]):
        held = {}
        for part in PARTS:
            if call[part] > len(arrays):
                raise ValueError(f"{call['path']} has {call[part]} {part}, and {ARRAYS} holds {len(arrays)} arrays")
            array_named = arrays.get if part.endswith("gradients") else arrays.__getitem__
            held[part] = tuple(array_named(f"call/{number}/{part}/{i}") for i in range(call[part]))
        calls[Site(call["path"], call["call"])] = Record(**held)
    if CALL not in calls:
        raise KeyError(f"the call {CALL.path}")
    draws = manifest.get("draws")
    return Reference(
        draws=None if draws is None else tuple(Draw(**{**draw, "shape": tuple(draw["shape"])}) for draw in draws),
        inputs=tuple(arrays[f"input/{i}"] for i in range(manifest["inputs"])),
        output=arrays["output"],
        cotangent=arrays["cotangent"],
        **{kind: {name: arrays[f"{kind}/{name}"] for name in manifest[kind]} for kind in NAMED},
        calls=calls,
        rounding=Rounding(*(_perturbed(manifest.get(kind, [])) for kind in ROUNDING)),
        frozen=frozenset(manifest["frozen"]),
        left_out=manifest.get("left_out", ""),
        outputs=tuple(manifest.get("outputs", ("",))),
        padding=manifest.get("padding", {}),
        keeps_buffers=manifest.get("keeps_buffers", False),
        not_covered=None if manifest["not_covered"] is None else tuple(manifest["not_covered"]),
        **{kind: manifest[kind] for kind in PLAIN},
    )
