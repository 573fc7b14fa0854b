"""Places where a new run may be put."""

import os
from contextlib import suppress
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.runs.folder import RunFolder


def refuse_inside_a_run(folder: Path) -> None:
    """Raise InputError if a folder lies inside a run's folder, which would take it for its own."""
    with suppress(OSError):  # such a folder cannot be written, which is reported later
        for around in Path(os.path.realpath(folder)).parents:
            if RunFolder(around).is_run:
                raise InputError(f"{folder} lies in {around}, which is a run; name a folder outside of it with --out")


def free_folder(parent: Path, name: str) -> Path:
    """Return `parent/name-0`, or the first number that no run has."""
    number = 0
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"
