"""Free memory, asked for before anything is allocated: a system promises more than there is, and then kills the process; and
glibc's malloc, which is told to keep what a training step frees for the next one."""

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
"""What a container may use, and uses."""


def free_bytes() -> int | None:
    """Bytes that this process may still allocate on the host; None where the system does not say."""
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
    """InputError where that many bytes are more than what is free."""
    if free is not None and needed > free:
        raise InputError(f"{what} needs at least {gigabytes(needed)} of memory, and {gigabytes(free)} are free; {remedy}")


def gigabytes(n: int) -> str:
    """Bytes as a person reads them."""
    return f"{n / 1e9:,.2f} GB"


OPTIONS = {-3: 2**25, -1: 2**31 - 1, -2: 2**26}
"""glibc's M_MMAP_THRESHOLD (the largest that it takes), M_TRIM_THRESHOLD and M_TOP_PAD, in bytes (malloc.h)."""


def keep_freed_memory() -> None:
    """For the whole process: a command may do so, a library not."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, size in OPTIONS.items():
            libc.mallopt(option, size)
