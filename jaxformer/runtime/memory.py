"""Free memory, and memory that is kept.

Free memory is checked before an allocation: systems promise more memory than there is, and then kill the process. glibc's
malloc is told to keep the memory that a training step frees for the next step.
"""

import ctypes
import os
import platform
import resource
from contextlib import suppress
from pathlib import Path

from jaxformer.errors import InputError

CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with the memory limit of a container, and with its current use."""


def free_bytes() -> int | None:
    """Number of bytes that this process can still allocate on the host; None if the system does not say."""
    found = []
    for limit, used in CGROUPS:
        with suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        found += [limit - pages * os.sysconf("SC_PAGE_SIZE")] if limit != resource.RLIM_INFINITY else []
    return max(0, min(found)) if found else None


def check_fits(what: str, needed: int, free: int | None, remedy: str) -> None:
    """Raise InputError if more bytes are needed than are free."""
    if free is not None and needed > free:
        raise InputError(f"{what} needs at least {gigabytes(needed)} of memory, and {gigabytes(free)} are free; {remedy}")


def gigabytes(n: int) -> str:
    """Return a number of bytes in GB, as text."""
    return f"{n / 1e9:,.2f} GB"


OPTIONS = {-3: 2**25, -1: 2**31 - 1, -2: 2**26}
"""Options of glibc: M_MMAP_THRESHOLD (the largest accepted), M_TRIM_THRESHOLD and M_TOP_PAD, in bytes (malloc.h)."""


def keep_freed_memory() -> None:
    """Make glibc's malloc keep freed memory, for the whole process: commands may call this, a library should not."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, size in OPTIONS.items():
            libc.mallopt(option, size)


def give_back_freed_memory() -> None:
    """Make glibc's malloc return what is free to the system, as after a compilation, which takes hundreds of MB."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
