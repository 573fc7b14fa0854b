"""One run folder has one writer: the process that holds the lock on its run.lock.

The system frees a lock when its process ends, however it ends: a file that a killed run left is taken over.
Only the JAX side has runs: the twin has none.
"""

import fcntl
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from jaxformer.errors import InputError
from jaxformer.processes.group import is_first
from jaxformer.signals import cleaned_up

LOCK = "run.lock"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Inside, no other run writes the folder: of several processes the first one holds the lock, for all of them.

    The folder is made where there is none, and is gone again if it stays empty.

    InputError names the process that writes it already. A file system without locks is written with a warning.
    """
    if not is_first():
        yield
        return
    path = folder / LOCK
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}; name another folder with --out") from None

    def leave() -> None:
        with suppress(OSError):
            path.unlink()
            if is_new:
                folder.rmdir()

    with file, cleaned_up(leave):
        try:
            yield
        finally:
            leave()


def _locked(path: Path) -> TextIO:
    """The lock's file, which now names this process. It is locked until it is closed."""
    while True:
        file = path.open("a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read()
            file.close()
            if owner:
                said = f"{path.parent} is being written by {owner}; let it end, or name another folder with --out"
                raise InputError(said) from None
            time.sleep(0.01)  # it has yet to write its name
            continue
        except OSError as error:
            reason = f"its file system has no locks ({error.strerror})"
            warnings.warn(f"{path.parent}: {reason}; see that no other process writes this run", stacklevel=4)
        with suppress(FileNotFoundError):  # the last owner removes the file before it frees the lock
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()
    file.truncate(0)
    print(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}", end="", file=file, flush=True)
    return file
