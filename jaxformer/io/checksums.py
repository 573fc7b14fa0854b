"""Checksums (sha256) of files and of JSON values, which reveal a single changed bit."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.validation.fields import check_file

SEAL = "sha256"


def checksum(path: Path) -> dict[str, Any] | None:
    """Return a file's size in bytes and its sha256; None if the file does not exist."""
    try:
        with check_file(path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            return {"size": file.tell(), "sha256": found}
    except FileNotFoundError:
        return None


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sha256 of the values' JSON, under "sha256"."""
    return {**values, SEAL: hashlib.sha256(json.dumps(values).encode()).hexdigest()}


def unsealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `sealed` without their sha256; ValueError if they have changed since."""
    held = {name: value for name, value in values.items() if name != SEAL}
    if sealed(held)[SEAL] != values.get(SEAL):
        raise ValueError("its sha256 differs")
    return held
