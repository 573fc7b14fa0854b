"""Lock of a run folder, for one writer: the process that holds the lock on its run.lock.

The system frees a lock when its process ends, however it ends: a file that a killed run left is taken over. Only jaxformer has
runs: the PyTorch twin has no such module.
"""

import fcntl
import os
import socket
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from jaxformer.errors import CheckpointError, InputError
from jaxformer.parallel.group import count, is_first
from jaxformer.runtime.shutdown import cleaned_up

LOCK = "run.lock"
PATIENCE = 5.0
"""Seconds that an owner has to write its name."""


class Held(NamedTuple):
    """Folder that this process writes."""

    descriptor: int
    """Open descriptor of the folder, by which the process recognises it."""
    identity: list[str]
    """Identity of the folder's run, once it has been read."""


_held: dict[Path, Held] = {}


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Context manager in which no other run writes the folder: the first process holds the lock for all processes.

    The folder is created if there is none, and removed again if it stays empty. InputError names the process that already
    writes the folder. A file system without locks is written with a warning.
    """
    if not is_first():
        yield
        return
    path, is_new = folder / LOCK, False

    def leave(file: BinaryIO) -> None:
        with suppress(OSError):
            if _is_at(path, file.fileno()):
                path.unlink()
                if is_new:
                    folder.rmdir()

    with ExitStack() as held:
        try:
            is_new = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(_locked(path))
            held.enter_context(cleaned_up(partial(leave, file)))
            held.callback(leave, file)
            _held[folder.absolute()] = Held(held.enter_context(_folder_locked(folder)), [])
            held.callback(_held.pop, folder.absolute())
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}".encode())
        except OSError as error:
            reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
            raise InputError(f"{folder} cannot be written: {reason}; name another folder with --out") from None
        yield


@contextmanager
def _folder_locked(folder: Path) -> Iterator[int]:
    """Lock the folder itself too: then removing the run.lock of a live run frees nothing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system locks folders
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                said = f"{folder} is being written by another process, though its {LOCK} was removed"
                raise InputError(f"{said}; let it end, or name another folder with --out") from None
        yield descriptor
    finally:
        os.close(descriptor)


def writer_of(folder: Path) -> str:
    """Return the name of the process that writes the folder at this moment; '' if none does."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return (folder / LOCK).read_text(errors="replace") or "another process"
    except OSError:  # no such file, or a file system without locks
        return ""
    return ""


def check_held(folder: Path) -> None:
    """Raise CheckpointError if this process writes the folder, and another one has its name by now."""
    held = _held.get(folder.absolute())
    if held is not None and not _is_at(folder, held.descriptor):
        raise CheckpointError(f"{folder} was moved or removed while it was written; nothing more is written there")


def own_path(folder: Path) -> Path:
    """Return a path by the open descriptor of a folder that this process alone writes: a new folder of that name is not
    written.

    If the system has no such paths, and in a run of several processes, it is the path as given.
    """
    held = _held.get(folder.absolute())
    opened = Path(f"/proc/self/fd/{held.descriptor}") if held and count() == 1 else folder
    return opened if opened.is_dir() else folder


def identity_of(folder: Path, read: Callable[[], str]) -> str:
    """Return the identity of a run.

    If this process writes the run, the identity is read once: moving the settings file meanwhile does not make it another run.
    """
    held = _held.get(folder.absolute())
    if held is None:
        return read()
    if not held.identity and (found := read()):
        held.identity.append(found)
    return "".join(held.identity)


def _is_at(path: Path, descriptor: int) -> bool:
    """True if the open file or folder still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _no_link(path: str, flags: int) -> int:
    """Open a file, but not through a link, which would have another file written."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _locked(path: Path) -> BinaryIO:
    """Return the lock's file, empty, locked until it is closed."""
    deadline = time.monotonic() + PATIENCE
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise InputError(f"{path} is a link, a pipe or a folder, and no lock of a run; remove it")
    while True:
        file = open(path, "a+b", buffering=0, opener=_no_link)  # noqa: SIM115 the file is open as long as it is locked
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().decode(errors="replace")
            file.close()
            if owner or time.monotonic() > deadline:
                owner = owner or "another process"
                said = f"{path.parent} is being written by {owner}; let it end, or name another folder with --out"
                raise InputError(said) from None
            time.sleep(0.01)  # the owner has yet to write its name
            continue
        except OSError as error:
            reason = f"its file system has no locks ({error.strerror})"
            warnings.warn(f"{path.parent}: {reason}; see that no other process writes this run", stacklevel=4)
        if _is_at(path, file.fileno()):  # the last owner removes the file before it frees the lock
            break
        file.close()
    file.truncate(0)
    return file
