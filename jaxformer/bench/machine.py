"""What the machine can do: a matrix product, a pass over memory, and how loaded it is."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SIDE = 1024
"""Rows and columns of the matrices that are multiplied."""
MEBIBYTES = 256
"""What is read once, far more than a cache holds."""
REPEATS = 12
PACKAGES = ("jax", "flax", "torch", "transformers")


@dataclass(frozen=True)
class Peak:
    """The best that was measured."""

    flops: float
    """Floating-point operations a second, of a float32 product."""
    bandwidth: float
    """Bytes of memory read in a second."""

    def part(self, flops: float, bytes_: float, seconds: float) -> float:
        """The least time that the work can take, over the time that it took."""
        return max(flops / self.flops, bytes_ / self.bandwidth) / seconds


def measure_peak() -> Peak:
    """The best of JAX and, where it is installed, of torch."""
    found = [measure_jax()] + ([measure_torch()] if find_spec("torch") else [])
    return Peak(max(peak.flops for peak in found), max(peak.bandwidth for peak in found))


def measure_jax() -> Peak:
    """By jax.numpy."""
    import jax
    import jax.numpy as jnp

    a, read = jnp.ones((SIDE, SIDE)), jnp.ones((MEBIBYTES * 256, 1024))
    product, total, times = jax.jit(jnp.matmul), jax.jit(jnp.sum), jax.jit(lambda x: x @ jnp.ones(1024))
    seconds = best(lambda: product(a, a).block_until_ready())
    reading = min(best(lambda f=f: f(read).block_until_ready()) for f in (total, times))
    return Peak(2 * SIDE**3 / seconds, read.nbytes / reading)


def measure_torch() -> Peak:
    """By torch, with all cores."""
    import torch

    torch.set_num_threads(cores())
    a, read, ones = torch.ones(SIDE, SIDE), torch.ones(MEBIBYTES * 256, 1024), torch.ones(1024)
    reading = min(best(read.sum), best(lambda: read @ ones))
    return Peak(2 * SIDE**3 / best(lambda: a @ a), read.nbytes / reading)


def best(work: Callable[[], object]) -> float:
    """Its seconds, the least of several times."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def load() -> float | None:
    """Processes that ran or waited in the last minute, on average; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described() -> dict[str, str | int]:
    """The processor, the number of cores, and the releases of what was measured."""
    releases = {package: version(package) for package in PACKAGES if find_spec(package)}
    return {"processor": processor(), "cores": cores(), "python": platform.python_version(), **releases}


def processor() -> str:
    """Its name."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
