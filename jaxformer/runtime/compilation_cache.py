"""Compiled programs on disk, by jax's persistent compilation cache. Our commands switch it on; importing jaxformer does not."""

import os
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import why_unwritten

FOLDER, LEAST_SECONDS = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
MOST = "JAX_COMPILATION_CACHE_MAX_SIZE"
"""Environment variables of jax's: a folder of the user's own, the least compile time of a program that is kept, and the most
bytes of all of them."""
MOST_BYTES = 2**30
"""Most that our own folder holds; jax removes first what was not used for longest."""

LOCK = ".lockfile"
"""jax's own name of the lock on its folder."""

_in_use: list[str] = []


@dataclass(frozen=True, kw_only=True)
class CacheFlag:
    """The flag of every command that compiles."""

    cache: bool = True
    """Keep compiled programs for the next start, in the user's cache folder or in that of JAX_COMPILATION_CACHE_DIR."""


def use_cache(cache: bool) -> None:
    """Keep compiled programs on disk, or, where `cache` is False, keep and read none. Call it before anything is compiled.

    A folder of the user's own keeps its limits. One that cannot be written is a warning, and nothing is kept.
    """
    import jax

    own = os.environ.get(FOLDER)
    folder = own or str(default_folder())
    if cache and (fault := why_unusable(folder)):
        said = f"compiled programs are not kept: {folder} cannot be written: {fault}; set {FOLDER} to another"
        warnings.warn(said, stacklevel=2)
        cache = False
    jax.config.update("jax_enable_compilation_cache", cache)
    if not cache:
        return
    _in_use.append(folder)
    if LEAST_SECONDS not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if not own:
        remove_unfinished(Path(folder))
        jax.config.update("jax_compilation_cache_dir", folder)
        if MOST not in os.environ:
            jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)


def default_folder() -> Path:
    """Where compiled programs are kept if the user names no folder."""
    import platformdirs

    return platformdirs.user_cache_path("jaxformer") / "compiled"


def why_unusable(folder: str) -> str:
    """Why nothing can be written there; empty where it can, or where the folder is on another machine."""
    if "://" in folder:
        return ""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return why_unwritten(error)
    return ""


def remove_unfinished(folder: Path) -> None:
    """Remove programs without their time of use, which a process left that was killed: jax cannot count them."""
    from filelock import FileLock, Timeout

    with suppress(OSError, Timeout), FileLock(folder / LOCK, timeout=1):  # whoever writes one holds jax's own lock
        for program in folder.glob("*-cache"):
            if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
                program.unlink()


def stated() -> str:
    """Where this process keeps compiled programs, as a line for the user; empty where it keeps none."""
    return f"compiled programs are kept in {_in_use[-1]}; --no-cache keeps none" if _in_use else ""
