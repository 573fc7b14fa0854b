"""The first call whose inputs are finite and whose output is not."""

from collections.abc import Iterable, Iterator

import numpy as np

from jaxformer.parity.numerics.float_masks import is_mask
from jaxformer.parity.trace.call_records import Trace, is_attention
from jaxformer.parity.trace.call_sites import CALL, Site

Counted = tuple[Site, str, int, int]
"""Call, 'inputs' or 'output', and of one of its arrays the number of entries that are NaN or infinite, and of all entries."""


def first_not_finite(arrays: Iterable[Counted]) -> str:
    """Name the call among those of a run, in order: 'h.3.mlp, in 12 of 4,096 numbers'; '' if there is none."""
    entered: set[Site] = set()
    for site, part, wrong, size in arrays:
        if wrong and part == "output" and site not in entered and site != CALL:
            return f"{site}, in {wrong:,} of {size:,} numbers"
        entered |= {site} if wrong and part == "inputs" else set()
    return ""


def counted(calls: Trace) -> Iterator[Counted]:
    """Count the entries that are not finite in recorded arrays, attention's scores and masks left out."""
    for site, record in calls.items():
        for part in ("inputs", "output") if not is_attention(site, record) else ():
            for array in getattr(record, part):
                if array.dtype.kind == "f" and not is_mask(array):
                    yield site, part, int((~np.isfinite(array)).sum()), array.size
