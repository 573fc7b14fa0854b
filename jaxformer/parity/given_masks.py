"""The masks that both sides hand to a module: whether they allow the same, whatever way they say it."""

import itertools
from collections.abc import Sequence
from functools import reduce

import numpy as np

from jaxformer.parity.seen import MASKED


def explain_masks(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    """In how many entries they differ; '' where they may be the same, or one side gives none.

    A boolean mask may be True where one attends, or where one does not; a float one is added. Of two axes, it is `T S` or
    `B S`; of three, `B T S`; of four, `B N T S`, each axis 1 where it is shared. Rows without any key, on either side, are
    left out.
    """
    mine, others = ([found for array in arrays if (found := meanings(array))] for arrays in (ours, theirs))
    if not mine or not others:
        return ""
    gaps: list[tuple[int, int]] = []
    for chosen in itertools.product(*mine, *others):
        try:
            one, other = (reduce(np.logical_and, masks) for masks in (chosen[: len(mine)], chosen[len(mine) :]))
            one, other = np.broadcast_arrays(one, other)
        except ValueError:
            continue
        rows = one.any(-1, keepdims=True) & other.any(-1, keepdims=True)
        gaps.append((int(((one != other) & rows).sum()), one.size))
    different, entries = min(gaps, default=(0, 0))
    return f"the mask that it is given differs from torch's in {different} of {entries} entries" if different else ""


def meanings(array: np.ndarray) -> list[np.ndarray]:
    """What it may allow, as `B N T S`; nothing if it is no mask."""
    if array.dtype == bool:
        ways = [array, ~array]
    elif array.dtype.kind == "f" and array.ndim and ((array == 0) | (array <= MASKED)).all() and (array <= MASKED).any():
        ways = [array > MASKED]
    else:
        return []
    shapes = {2: [(None, None), (slice(None), None, None)], 3: [(slice(None), None)], 4: [()]}
    return [way[shape] for way in ways for shape in shapes.get(array.ndim, [])]
