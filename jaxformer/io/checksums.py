"""sha256 of files and of what JSON holds, so that one changed bit is noticed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.validation.fields import check_file

SEAL = "sha256"


def checksum(path: Path) -> dict[str, Any] | None:
    """A file's size in bytes and its sha256; None where there is none."""
    try:
        with check_file(path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            return {"size": file.tell(), "sha256": found}
    except FileNotFoundError:
        return None


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the sha256 of its JSON."""
    return {**values, SEAL: hashlib.sha256(json.dumps(values).encode()).hexdigest()}


def unsealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was sealed; ValueError where it was changed since."""
    held = {name: value for name, value in values.items() if name != SEAL}
    if sealed(held)[SEAL] != values.get(SEAL):
        raise ValueError("its sha256 differs")
    return held
