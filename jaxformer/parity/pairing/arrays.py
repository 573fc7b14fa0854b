"""Pairing of torch's arrays with jax's: by dtype kind and by shape up to the order of axes, or by a slice of torch's array."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.numerics.axis_order import Order, Part, orders_for, parts_as_large, plain_order, repeated
from jaxformer.parity.trace.call_records import Record, Trace
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site


def fit(theirs: Sequence[np.ndarray], ours: Sequence[Any], *, any_kind: bool = False) -> list[int | None]:
    """Pair each of jax's arrays with the first of torch's that fits and comes after the ones already paired.

    Returns the index of torch's array for each of jax's, None if none fits. Boolean masks never fit, because True may mean the
    opposite on the other side, unless `any_kind` admits arrays of every dtype kind.
    """

    def fits(array: np.ndarray, other: Any) -> bool:
        same_kind = _kind(array.dtype) == _kind(other.dtype) != "bool_"
        return (any_kind or same_kind) and bool(orders_for(array.shape, other.shape))

    numbers: list[int | None] = []
    start = 0
    for array in ours:
        number = next((i for i in range(start, len(theirs)) if fits(theirs[i], array)), None)
        start = start if number is None else number + 1
        numbers.append(number)
    return numbers


def plain_orders(
    ours: Mapping[Site, list[np.ndarray]], theirs: Trace, pairs: Mapping[Site, Site], valid: Mapping[Site, np.ndarray]
) -> dict[ArrayKey, Order]:
    """Find the orders of torch's axes that are clear from the outputs of jax's calls in the normal run, in torch's call order.

    Outputs of the user's call keep torch's order: no code after the call could transpose them.
    """
    found = {ArrayKey(CALL, "output", i): tuple(range(array.ndim)) for i, array in enumerate(theirs[CALL].output)}
    back = {other: mine for mine, other in pairs.items()}
    for site in (back[other] for other in theirs if other in back and other != CALL):
        outputs = theirs[pairs[site]].output
        for array, number in zip(ours[site], fit(outputs, ours[site]), strict=True):
            if number is not None and (order := plain_order(outputs[number], array, valid.get(site))) is not None:
                found[ArrayKey(site, "output", number)] = order
    return found


class AxisOrders:
    """Orders of torch's axes, chosen array by array in the order in which jax's code makes the arrays."""

    def __init__(self, known: Mapping[ArrayKey, Order], attention: Container[Site]):
        self.known = known
        self.attention = attention
        """Taps of attention scores and attention weights."""
        self.taken: dict[ArrayKey, Order] = {}
        self.fixed: set[ArrayKey] = set()
        """Arrays for which only one order is possible."""
        self.shapes: dict[ArrayKey, tuple[int, ...]] = {}
        """Shapes of jax's arrays."""
        self.last = {self._kind(place.site, len(order)): order for place, order in reversed([*known.items()])}
        """Last known order of each kind of array; before the first one, the order that is known of the first later array."""

    def take(self, place: ArrayKey, theirs: tuple[int, ...], shape: tuple[int, ...]) -> Order:
        """Choose the order of torch's axes in jax's array: the known order, else the last one of an array of the same kind.

        A module's inputs are assumed to be right, since errors in them are the caller's. So if no order is clear for a module's
        output, the module is assumed to keep the order of its inputs.
        """
        orders = orders_for(theirs, shape)
        if place.site == CALL and theirs == shape:
            orders = orders[:1]  # no code after the user's call could transpose it
        kind = self._kind(place.site, len(theirs))
        fixed = len(orders) == 1
        order = orders[0] if fixed else self.known.get(place, self.last.get(kind))
        if order not in orders and orders[0] != tuple(range(len(theirs))):
            order = self.last[kind] = orders[0]  # rows and columns of one size, in another order than torch's anyway
        if order is not None and (fixed or place in self.known):
            self.last[kind] = order
        order = orders[0] if order is None or order not in orders else order
        self.taken[place], self.shapes[place] = order, shape
        self.fixed |= {place} if fixed else set()
        return order

    def _kind(self, site: Site, n_axes: int) -> tuple[int, str]:
        """Kind of an array: arrays with equally many axes share one order, except attention scores and attention weights."""
        return n_axes, site.path.rpartition(".")[2] if site in self.attention else ""


def _kind(dtype: Any) -> str:
    kinds = ("floating", "integer", "complexfloating", "bool_")
    return next(kind for kind in kinds if jnp.issubdtype(dtype, getattr(jnp, kind)))


def as_long_as_jaxs(theirs: Trace, ours: Mapping[Site, Sequence[np.ndarray]], pairs: Mapping[Site, Site]) -> Trace:
    """Crop the outputs of torch's calls to the slices that jax computes."""
    back = {other: mine for mine, other in pairs.items() if other != CALL}
    return {
        site: cropped(without_unread(record, ours[back[site]]), ours[back[site]]) if site in back else record
        for site, record in theirs.items()
    }


def without_unread(record: Record, ours: Sequence[np.ndarray]) -> Record:
    """Empty torch's outputs that nothing reads (zero gradient), if jax's call returns fewer arrays: they have no
    counterpart."""
    back = record.output_gradients
    read = [gradient is not None and bool(gradient.any()) for gradient in back]
    if len(back) != len(record.output) or len(ours) >= len(back) or len(ours) > sum(read):
        return record
    kept = zip(record.output, read, strict=True)
    return replace(record, output=tuple(array if is_read else array[:0].flatten() for array, is_read in kept))


def cropped(record: Record, ours: Sequence[np.ndarray]) -> Record:
    """Crop a call's outputs and their gradients to the slices that `part_read` finds."""
    parts = [part_read(*each) for each in zip_longest(record.output, record.output_gradients, ours[: len(record.output)])]
    if not any(parts):
        return record
    output = tuple(array[part] for array, part in zip(record.output, parts, strict=True))
    back = tuple(array if array is None else array[part] for array, part in zip(record.output_gradients, parts, strict=False))
    return replace(record, output=output, output_gradients=back)


def part_read(theirs: np.ndarray, gradient: np.ndarray | None, ours: np.ndarray | None) -> Part:
    """Find the slice of torch's array, as large as jax's, that holds every nonzero gradient: nothing reads the rest.

    Returns (), the whole array, if there is no such slice or jax's array fits torch's already.
    """
    if ours is None or gradient is None or orders_for(theirs.shape, ours.shape) or repeated(ours, theirs):
        return ()
    read = np.count_nonzero(gradient)
    parts = parts_as_large(theirs.shape, ours.shape)
    return next((part for part in parts if read and np.count_nonzero(gradient[part]) == read), ())
