"""How many threads PyTorch runs with: one, or all, whichever is faster."""

import time
from collections.abc import Callable

import torch

from jaxformer.bench.machine import cores


def use_faster_count(work: Callable[[], object]) -> int:
    """Time some work with one thread and with all, the second time of two each; the faster count is kept and returned."""
    seconds = {}
    for threads in sorted({1, cores()}):
        torch.set_num_threads(threads)
        work()
        start = time.perf_counter()
        work()
        seconds[threads] = time.perf_counter() - start
    faster = min(seconds, key=lambda threads: seconds[threads])
    torch.set_num_threads(faster)
    return faster
