"""Writes that are whole or not there: atomic writes, and the disk space and open files that a checkpoint needs, checked in
advance because orbax's threads wait for what they do not get.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex

from jaxformer.errors import FULL, InputError
from jaxformer.runtime.shutdown import cleaned_up

UNFINISHED = ".unfinished"
"""Suffix of the temporary name of a file or folder that is being written."""
NOT_OFFERED = errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP
"""Error numbers of a file system that does not support fsync, for files or for folders."""
NAMES = 32
"""Maximum number of files and folders of a checkpoint."""
DESCRIPTORS = 24
"""Maximum number of files that are open while a checkpoint is written or read."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Atomic write: yield a temporary path, which is renamed to `path` at the end, or removed if an error occurs.

    The temporary name is unique: another process may write the same path at the same time, and a fixed name might be a user's
    file.
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


def write_text(path: Path, text: str, remedy: str) -> None:
    """Write a text file whole; InputError, with the remedy, if it cannot be written."""
    try:
        with written_whole(path) as unfinished:
            unfinished.write_bytes(text.encode("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; {remedy}") from None


def refuse_existing(folder: Path) -> None:
    """Raise InputError if a file or folder of this name exists."""
    if folder.exists():
        raise InputError(f"{folder} exists already; remove it, or give another name")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Atomic write of a new folder: yield an empty folder, which is renamed to `folder` at the end; InputError if that
    exists."""
    refuse_existing(folder)
    with written_whole(folder) as unfinished:
        unfinished.mkdir(parents=True)
        yield unfinished


def to_disk(*paths: Path) -> None:
    """Flush files, and the names in folders, to the disk (fsync): a crash of the machine may lose what is not flushed.

    OSError names the path that the disk does not accept. A file system without fsync is ignored.
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
    """Remove an unfinished file or folder, if it exists."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def check_room(folder: Path, size: int) -> None:
    """Raise OSError if the disk of `folder` has less than `size` bytes of free space, or cannot hold enough new files."""
    if size > (free := shutil.disk_usage(folder).free):
        raise OSError(errno.ENOSPC, f"{FULL[0]}: it takes {size:,} bytes, and {free:,} are free")
    system = os.statvfs(folder)
    if system.f_files and system.f_favail < NAMES:
        said = f"it takes up to {NAMES} files and folders, and {system.f_favail} are free"
        raise OSError(errno.ENOSPC, f"{FULL[0]}: {said}")


def check_descriptors() -> None:
    """Raise OSError if this process cannot open enough files."""
    opened: list[int] = []
    try:
        with suppress(OSError):
            while len(opened) < DESCRIPTORS:
                opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for each in opened:
            os.close(each)
    if len(opened) < DESCRIPTORS:
        said = f"it takes up to {DESCRIPTORS} open files, and this process may open {len(opened)}; allow more: ulimit -n 256"
        raise OSError(errno.EMFILE, said, "a checkpoint")
