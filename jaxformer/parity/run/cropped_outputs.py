"""Outputs of torch's calls of which its code goes on with a part, as of causal convolutions that pad on both sides: where jax
makes that part alone, it is compared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from jaxformer.parity.capture.call_records import Record, Trace
from jaxformer.parity.capture.call_sites import CALL, Site
from jaxformer.parity.numerics.axis_order import orders_for, repeated
from jaxformer.parity.numerics.crops import Part, parts_as_large


def as_long_as_jaxs(theirs: Trace, ours: Mapping[Site, Sequence[np.ndarray]], pairs: Mapping[Site, Site]) -> Trace:
    """torch's calls, with the parts of their outputs that jax has."""
    back = {other: mine for mine, other in pairs.items() if other != CALL}
    return {
        site: cropped(without_unread(record, ours[back[site]]), ours[back[site]]) if site in back else record
        for site, record in theirs.items()
    }


def without_unread(record: Record, ours: Sequence[np.ndarray]) -> Record:
    """The same call; where jax gives fewer arrays, those of torch's that nothing reads are empty: they are none of jax's."""
    back = record.output_gradients
    read = [gradient is not None and bool(gradient.any()) for gradient in back]
    if len(back) != len(record.output) or len(ours) >= len(back) or len(ours) > sum(read):
        return record
    kept = zip(record.output, read, strict=True)
    return replace(record, output=tuple(array if is_read else array[:0].flatten() for array, is_read in kept))


def cropped(record: Record, ours: Sequence[np.ndarray]) -> Record:
    """The same call."""
    parts = [part_read(*each) for each in zip_longest(record.output, record.output_gradients, ours[: len(record.output)])]
    if not any(parts):
        return record
    output = tuple(array[part] for array, part in zip(record.output, parts, strict=True))
    back = tuple(array if array is None else array[part] for array, part in zip(record.output_gradients, parts, strict=False))
    return replace(record, output=output, output_gradients=back)


def part_read(theirs: np.ndarray, gradient: np.ndarray | None, ours: np.ndarray | None) -> Part:
    """The part as large as jax's array outside of which nothing reads torch's; all of it where there is none, or jax's fits."""
    if ours is None or gradient is None or orders_for(theirs.shape, ours.shape) or repeated(ours, theirs):
        return ()
    read = np.count_nonzero(gradient)
    parts = parts_as_large(theirs.shape, ours.shape)
    return next((part for part in parts if read and np.count_nonzero(gradient[part]) == read), ())
