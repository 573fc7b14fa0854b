"""torch's arrays paired with jax's: the same kind of numbers in the same shape, in some order of axes, or a part of it."""

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
    """For each of jax's arrays the number of torch's: the first that fits, behind those that are taken; None where none does.

    Masks of booleans never fit, since their sense may differ, unless numbers of `any_kind` fit.
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
    """The orders of torch's axes that are clear from what jax's calls give in the normal run, in torch's call order. What the
    user's calls give is as it is: nobody behind them turns it."""
    found = {ArrayKey(CALL, "output", i): tuple(range(array.ndim)) for i, array in enumerate(theirs[CALL].output)}
    back = {other: mine for mine, other in pairs.items()}
    for site in (back[other] for other in theirs if other in back and other != CALL):
        outputs = theirs[pairs[site]].output
        for array, number in zip(ours[site], fit(outputs, ours[site]), strict=True):
            if number is not None and (order := plain_order(outputs[number], array, valid.get(site))) is not None:
                found[ArrayKey(site, "output", number)] = order
    return found


class AxisOrders:
    """The orders in which the axes of torch's arrays are taken, array by array in the order of jax's code."""

    def __init__(self, known: Mapping[ArrayKey, Order], attention: Container[Site]):
        self.known = known
        self.attention = attention
        """Taps of scores and weights."""
        self.taken: dict[ArrayKey, Order] = {}
        self.fixed: set[ArrayKey] = set()
        """Where no other order is possible."""
        self.shapes: dict[ArrayKey, tuple[int, ...]] = {}
        """Of jax's arrays."""
        self.last = {self._kind(place.site, len(order)): order for place, order in reversed([*known.items()])}
        """The last known order of each kind of array; before there is one, the first that is known of later arrays."""

    def take(self, place: ArrayKey, theirs: tuple[int, ...], shape: tuple[int, ...]) -> Order:
        """The order of torch's axes in jax's array: the known one, or else the last that was.

        What comes in is right, unless the caller is wrong: so a module whose output is near to nothing is taken to leave the
        axes as it found them.
        """
        orders = orders_for(theirs, shape)
        if place.site == CALL and theirs == shape:
            orders = orders[:1]  # nobody is there to turn it
        kind = self._kind(place.site, len(theirs))
        fixed = len(orders) == 1
        order = orders[0] if fixed else self.known.get(place, self.last.get(kind))
        if order is not None and (fixed or place in self.known):
            self.last[kind] = order
        order = orders[0] if order is None or order not in orders else order
        self.taken[place], self.shapes[place] = order, shape
        self.fixed |= {place} if fixed else set()
        return order

    def _kind(self, site: Site, n_axes: int) -> tuple[int, str]:
        """Arrays with equally many axes have them in one order; attention's scores and weights are kinds of their own."""
        return n_axes, site.path.rpartition(".")[2] if site in self.attention else ""


def _kind(dtype: Any) -> str:
    kinds = ("floating", "integer", "complexfloating", "bool_")
    return next(kind for kind in kinds if jnp.issubdtype(dtype, getattr(jnp, kind)))


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
