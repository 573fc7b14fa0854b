"""Compiled programs on disk, in jax's persistent compilation cache. jaxformer's commands enable it; importing jaxformer does
not."""

import os
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import why_unwritten

FOLDER, LEAST_SECONDS = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
MOST = "JAX_COMPILATION_CACHE_MAX_SIZE"
"""Environment variables of jax: the user's own cache folder, the minimum compile time of programs that are kept, and the
maximum size of the folder in bytes."""
MOST_BYTES = 2**30
"""Maximum size of jaxformer's own cache folder; jax removes the least recently used programs first."""

MOST_PROGRAMS, KEPT = 1000, 500
"""Number of programs from which a command removes some, and how many it keeps: jax reads the time of use of each before it
keeps another, 20 ms for a thousand."""

LOCK = ".lockfile"
"""Name of jax's lock file in its cache folder."""

_in_use: list[str] = []


@dataclass(frozen=True, kw_only=True)
class CacheFlag:
    """Flag of every command that compiles."""

    cache: bool = True
    """Keep compiled programs for the next start, in the user's cache folder or in that of JAX_COMPILATION_CACHE_DIR."""


def use_cache(cache: bool) -> None:
    """Enable jax's compilation cache on disk, or disable it if `cache` is False. Call it before anything is compiled.

    A folder that the user has set keeps its own limits. If the folder cannot be written, a warning is issued and nothing is
    kept.
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
        tidy(Path(folder))
        jax.config.update("jax_compilation_cache_dir", folder)
        if MOST not in os.environ:
            jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)


def default_folder() -> Path:
    """Folder for compiled programs if the user has set none."""
    import platformdirs

    return platformdirs.user_cache_path("jaxformer") / "compiled"


def why_unusable(folder: str) -> str:
    """Return why a folder cannot be written; "" if it can, or if it is a remote URL."""
    if "://" in folder:
        return ""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return why_unwritten(error)
    return ""


def tidy(folder: Path) -> None:
    """Remove programs without their time of use, which a killed process leaves behind: jax cannot count them. Of too many
    programs, remove the least recently used."""
    from filelock import FileLock, Timeout

    with suppress(OSError, Timeout), FileLock(folder / LOCK, timeout=1):  # whoever writes a program holds jax's own lock
        used: dict[Path, int] = {}
        for program in folder.glob("*-cache"):
            try:
                used[program] = int.from_bytes(time_of_use(program).read_bytes(), "little")
            except FileNotFoundError:
                program.unlink()
        for program in sorted(used, key=lambda each: used[each])[:-KEPT] if len(used) > MOST_PROGRAMS else ():
            program.unlink()
            time_of_use(program).unlink()


def time_of_use(program: Path) -> Path:
    """Return the file in which jax keeps the time when a program was last used."""
    return program.with_name(program.name.removesuffix("-cache") + "-atime")


def stated() -> str:
    """Return a line that tells the user where this process keeps compiled programs; "" if it keeps none."""
    return f"compiled programs are kept in {_in_use[-1]}; --no-cache keeps none" if _in_use else ""
