"""Files and folders that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxformer.errors import InputError

UNFINISHED = ".unfinished"
"""Behind the name of what is being written."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder: at the end it gets the name `path`; where an error ends it, nothing is left."""
    unfinished = path.with_name(path.name + UNFINISHED)
    _remove(unfinished)
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        _remove(unfinished)


def refuse_existing(folder: Path) -> None:
    """InputError where there is one of this name already."""
    if folder.exists():
        raise InputError(f"{folder} exists already; remove it, or give another name")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to write into, which gets the name `folder` at the end; InputError where there is one already."""
    refuse_existing(folder)
    with written_whole(folder) as unfinished:
        unfinished.mkdir(parents=True)
        yield unfinished


def _remove(path: Path) -> None:
    """What an earlier attempt left, or this one."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
