"""Memory that a training step frees is kept for the next one, where the C library is glibc.

By default an array of some size gets pages of its own, which are given back when it is freed. A compiled program that is called
once a step gets all of its arrays anew, and the system clears every page of them first: on a CPU up to a third of a step.
"""

import ctypes
import platform

OPTIONS = {-3: 2**25, -1: 2**31 - 1, -2: 2**26}
"""glibc's M_MMAP_THRESHOLD (the largest that it takes), M_TRIM_THRESHOLD and M_TOP_PAD, in bytes (malloc.h)."""


def keep_freed_memory() -> None:
    """For the whole process: a command may do so, a library not."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, size in OPTIONS.items():
            libc.mallopt(option, size)
