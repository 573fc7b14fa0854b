"""Disk space and open files that a checkpoint needs, checked in advance: orbax's threads wait for what they do not get."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from jaxformer.errors import FULL

NAMES = 32
"""Maximum number of files and folders of a checkpoint."""
DESCRIPTORS = 24
"""Maximum number of files that are open while a checkpoint is written or read."""


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
