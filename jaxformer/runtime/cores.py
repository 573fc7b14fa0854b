"""Cores that this process may use at once: fewer than the machine has, where it is bound to some or a container has a quota.

Importing this module imports no jax.
"""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "NPROC"
"""Environment variable by which XLA sets its number of threads on a CPU."""
GROUPS = Path("/sys/fs/cgroup")
"""Folder of the control groups, by which Linux limits containers."""


def cores() -> int:
    """Number of cores that this process may use; NPROC, if it is set."""
    if (number := os.environ.get(VARIABLE, "")).isdecimal() and int(number):
        return int(number)
    return min([bound(), *map(math.ceil, quotas())])


def bound() -> int:
    """Number of cores that this process is bound to; all, if it is free."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads() -> None:
    """Make XLA start no more threads than the quota of a container allows, which it does not read.

    More would be stopped together until the next period, a tenth of a second. Call it before jax has its devices.
    """
    if (number := cores()) < bound():
        os.environ[VARIABLE] = str(number)


def quotas() -> Iterator[float]:
    """Yield the limits of processor time, in cores, that the control groups of this process set, of version 2 or 1."""
    own = ""
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text("utf-8").rpartition("::/")[2].strip()
    for group in (GROUPS / own, *(GROUPS / own).parents):
        with suppress(OSError, ValueError):  # "max", where nothing is limited
            quota, period = map(int, (group / "cpu.max").read_text("utf-8").split())
            yield quota / period
    with suppress(OSError, ValueError):
        quota, period = (int((GROUPS / f"cpu/cpu.cfs_{name}_us").read_text("utf-8")) for name in ("quota", "period"))
        if quota > 0:  # -1, where nothing is limited
            yield quota / period
