"""Files and folders that appear whole or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex

from jaxformer.errors import InputError
from jaxformer.runtime.shutdown import cleaned_up

UNFINISHED = ".unfinished"
"""Behind the name of what is being written."""
NOT_OFFERED = errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP
"""What a file system answers that cannot be asked to write a file, or a folder, to the disk."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder: at the end it gets the name `path`; where an error ends it, nothing is left.

    The place has a name of its own: another process may write the same path, and a like name may be somebody's.
    """
    unfinished = path.with_name(f"{path.name}.{token_hex(4)}{UNFINISHED}")
    with cleaned_up(partial(remove, unfinished)):
        try:
            yield unfinished
            to_disk(*unfinished.rglob("*"), unfinished)
            os.replace(unfinished, path)
            to_disk(path.parent)
        finally:
            remove(unfinished)


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


def to_disk(*paths: Path) -> None:
    """Have the system write files, and the names in folders, to the disk: a crash of the machine may lose what it has not.

    OSError names the one that the disk does not take; a file system that does not offer it is left alone.
    """
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                error.filename = str(path)
                raise


def remove(path: Path) -> None:
    """Remove a file or a folder that is not finished, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
