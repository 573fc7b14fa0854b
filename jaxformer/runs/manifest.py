"""Manifest of a run folder: sizes and sha256 of its files, so that a changed file is never used silently.

manifest.json   file -> the versions that may be there, each its size and sha256; and the sha256 of all this

A file that grows line by line has no sha256: its lines have their own checks, and its entry holds its least length.

A file and its entry cannot change at one instant. While a file is replaced, its entry names the old version and the new one:
whenever the process is killed, the file is one of them. The version of a file that is not there yet is null.
Only jaxformer has runs: the PyTorch twin has no such module.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.errors import REFUSED, CheckpointError
from jaxformer.io.atomic import written_whole
from jaxformer.io.checksums import checksum, sealed, unsealed
from jaxformer.runs.lock import check_held
from jaxformer.validation.fields import check_file, parsed, read_small

CONFIG, MANIFEST = "config.json", "manifest.json"
WEIGHTS, EVALUATED = "weights.safetensors", "evaluated"
REMOVE = "remove it: "
REMEDIES = {
    WEIGHTS: f"{REMOVE}--resume writes it again",
    EVALUATED: f"{REMOVE}--resume goes on without it, and --resume with an earlier step writes it again",
}
"""Remedies for a changed file, or for files of this folder of a run. Any other file is needed as it was."""
Version = dict[str, Any] | None
Entries = dict[str, list[Version]]


@dataclass(frozen=True)
class Manifest:
    """Manifest of a folder. Folders of older runs have none, and their files are not checked."""

    folder: Path
    remedy: str = ""
    """Remedy for a changed file, besides putting it back; empty in the folder of a run."""

    @property
    def entries(self) -> Entries:
        """Versions of each file; none without a manifest. CheckpointError if the manifest is corrupted."""
        path = self.folder / MANIFEST
        try:
            return _entries(parsed(read_small(path)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, OSError) and error.errno in REFUSED:
                said = f"{path} cannot be read by user {os.geteuid()}: {error.strerror}; let this user read it"
                raise CheckpointError(said) from None
            raise CheckpointError(f"{path} is damaged ({error}); put it back, or remove it: then no file is checked") from None

    @contextmanager
    def renewed(self, path: Path) -> Iterator[Path]:
        """Context manager for the atomic write of a file: it yields a temporary path, then renames it to `path` and updates the
        entry.
        """
        name = path.relative_to(self.folder).as_posix()
        with written_whole(path) as unfinished:
            yield unfinished
            entries, new = self.entries, checksum(unfinished)
            before = entries[name] if name in entries else [checksum(path)]
            self._write(entries | {name: [*before, new]})
        self._write(entries | {name: [new]})

    def enter_length(self, path: Path, size: int) -> None:
        """Enter the least number of bytes of a file that only grows."""
        grown: Entries = {path.relative_to(self.folder).as_posix(): [{"size": size}]}
        self._write(self.entries | grown)

    def least_length(self, name: str) -> int:
        """Return the least number of bytes of such a file; 0 without an entry."""
        return max((entry["size"] for entry in self.entries.get(name, ()) if entry), default=0)

    def remove(self, path: Path) -> None:
        """Remove a file and its entry, the entry first."""
        name = path.relative_to(self.folder).as_posix()
        self._write({other: versions for other, versions in self.entries.items() if other != name})
        path.unlink(missing_ok=True)

    def begin(self, paths: Iterable[Path]) -> None:
        """Enter files as they are, if the folder has no manifest yet, or one without its settings."""
        if CONFIG not in self.entries:
            self._write({path.relative_to(self.folder).as_posix(): [checksum(path)] for path in paths})

    def check(self, name: str) -> None:
        """Raise CheckpointError if a file is none of its versions; a file without an entry is not checked."""
        path, entries = self.folder / name, self.entries
        try:
            while name in entries and (found := _version(path, entries[name])) not in entries[name]:
                before, entries = entries, self.entries
                if entries == before:  # otherwise the run wrote the file in between
                    fault = _difference(found, entries[name][-1] or {})
                    raise CheckpointError(f"{path} {fault}; put it back, or {self._remedy(name, found)}")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None

    def _remedy(self, name: str, found: Version) -> str:
        """Return the remedy for a changed file, besides putting it back."""
        remedy = self.remedy or REMEDIES.get(name.split("/")[0], "start a new run with --out")
        return remedy.removeprefix(REMOVE) if found is None else remedy

    def _write(self, entries: Entries) -> None:
        """Write the manifest; CheckpointError if the folder of a live run was replaced, or has lost its manifest."""
        check_held(self.folder)
        if CONFIG not in entries:
            lost = f"{self.folder / MANIFEST} was removed while the run was written"
            raise CheckpointError(f"{lost}; go on with --resume, which takes the files as they are and gives it a new one")
        with written_whole(self.folder / MANIFEST) as unfinished:
            unfinished.write_text(json.dumps(sealed({"files": entries}), indent=1) + "\n", "utf-8")


def _entries(found: Any) -> Entries:
    """Return a manifest's entries; ValueError if it is not a manifest."""
    if not isinstance(found, dict):
        raise ValueError(f"it holds {found!r:.30}, not an object")
    files = unsealed(found).get("files")
    if not isinstance(files, dict):
        raise ValueError(f"its files are {files!r:.30}, not an object")
    for name, versions in files.items():
        if not (name.isprintable() and isinstance(versions, list) and versions and all(map(_is_version, versions))):
            raise ValueError(f"its entry {name!r:.60} is {versions!r:.60}, not a list of sizes and sha256s")
    return files


def _version(path: Path, wanted: Iterable[Version]) -> Version:
    """Return the version of a file; only its size if no wanted version has that: a large file is not read for nothing."""
    with suppress(FileNotFoundError):
        size = check_file(path).stat().st_size
        if path.is_file() and size not in [version["size"] for version in wanted if version]:
            return {"size": size}
    return checksum(path)


def _is_version(found: Any) -> bool:
    """True if `found` is a manifest's description of a file."""
    return found is None or (
        isinstance(found, dict) and type(found.get("size")) is int and isinstance(found.get("sha256", ""), str)
    )


def _difference(found: Version, wanted: dict[str, Any]) -> str:
    """Say what is wrong with a file."""
    if found is None:
        return f"is missing, and {MANIFEST} names it"
    sizes = f"{found['size']} bytes, not {wanted.get('size')}"
    if "sha256" in found:
        sizes = f"{found['size']} bytes of sha256 {found['sha256']:.12}, not {wanted.get('sha256', ''):.12}"
    return f"was changed since it was written ({sizes})"
