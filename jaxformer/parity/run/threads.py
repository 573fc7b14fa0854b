"""Number of torch's threads: one for a small model, where several would wait for each other longer than they compute."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

SMALL = 5e8
"""Products of parameters and numbers of an input: some 50 ms on one core. On a core that others use too, threads that wait for
each other at every operation made a comparison of a small model take 20 times as long."""


@contextmanager
def one_if_small(torch_model: Any, arrays: Sequence[np.ndarray]) -> Iterator[None]:
    """Inside, torch has one thread if the model with these inputs is small."""
    import torch

    threads, parameters = torch.get_num_threads(), sum(each.numel() for each in torch_model.parameters())
    is_small = parameters * max((math.prod(array.shape) for array in arrays), default=0) < SMALL
    torch.set_num_threads(1 if is_small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
