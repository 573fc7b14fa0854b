"""Parts of arrays: as many entries as another array has along one axis, the first or the last."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from jaxformer.parity.numerics.metrics import distance

Part = tuple[slice, ...]
ALL = slice(None)
AGAIN = 1e-13
"""relL2 of an array from itself, made again: fused kernels add up in another order."""


def parts_as_large(whole: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Part]:
    """The parts of a shape that have the sizes of another one, in any order of axes."""
    for axis, size in enumerate(whole):
        less = Counter(wanted) - Counter(whole[:axis] + whole[axis + 1 :])
        if len(whole) == len(wanted) and less.total() == 1 and 0 < (left := next(iter(less))) < size:
            for part in (slice(left), slice(size - left, None)):
                yield (*[ALL] * axis, part)


def part_of(whole: np.ndarray, wanted: np.ndarray) -> Part:
    """Where an array stands in a larger one; all of it where it stands nowhere."""
    parts = parts_as_large(whole.shape, wanted.shape)
    return next((part for part in parts if whole[part].shape == wanted.shape and distance(whole[part], wanted) <= AGAIN), ())
