"""Explain arrays with the same numbers at other places: axes or rows in another order, shifted ids, other rows of a table, the
array of a later call."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import Difference
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.diagnose.numbers_and_orders import PATTERNS, SHOWN, WAVES, first_wave, moved, pattern
from jaxformer.parity.numerics.axis_order import orders_for, to_jax_axes
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

MOST_AXES = 5


def turned(args: dict[str, Any]) -> str:
    """Return words for axes in another order."""
    off = [axis for axis, at in enumerate(args["order"]) if axis != at]
    if len(off) == 2:
        return "jax gives torch's array with axes {} and {} exchanged (a transposition)".format(*off)
    return "jax gives torch's axes in the order {order} (a transposition)"


def shifted(what: str) -> Callable[[dict[str, Any]], str]:
    """Return the function that gives words for integers that are all shifted by one number."""

    def said(args: dict[str, Any]) -> str:
        by = args["by"]
        offset = f"an offset of {abs(by)} is {'too many' if by > 0 else 'missing'}"
        return f"jax looks up {what} {moved(by)} than torch's{{clipped}}: {offset}"

    return said


TURNED = Change("axes.order", turned, torch="")
RESHAPED = Change("axes.reshaped", "jax reshapes where torch transposes, to the axes {order}", torch="")
SHIFTED = Change("ids.shifted", shifted("ids"), torch="")
READ = Change("ids.read", "jax takes {ids} as it is for these ids", torch="")
TAKEN = Change("ids.taken", "jax has id {jax} where torch has {torch}{where}", torch="")


def explain_axes(difference: Difference) -> Candidate | None:
    """Explain an array that is torch's with its axes in another order, or reshaped."""
    jax, torch = difference.jax, difference.torch
    for order in orders_for(torch.shape, jax.shape)[1:]:
        if (residual := distance(to_jax_axes(torch, order, jax.shape), jax)) <= EXPLAINED:
            return plain(TURNED, residual, order=tuple(order))
    return reshaped(jax, torch)


def reshaped(jax: np.ndarray, torch: np.ndarray) -> Candidate | None:
    """Explain an array that jax reshapes where torch transposes: the numbers are the same, read in another order of axes."""
    if jax.shape != torch.shape or jax.size < 2:
        return None
    for order in itertools.permutations(range(torch.ndim)) if torch.ndim <= MOST_AXES else ():
        back, shape = np.argsort(order), tuple(torch.shape[axis] for axis in order)
        for array in (torch.reshape(shape).transpose(back), torch.transpose(order).reshape(torch.shape)):
            if not np.array_equal(array, torch) and (residual := distance(array, jax)) <= EXPLAINED:
                return plain(RESHAPED, residual, order=order)
    return None


def explain_read_ids(difference: Difference) -> Candidate | None:
    """Explain ids that are another input of the module or of the whole call."""
    alike = (name for name, array in difference.evidence.ids.items() if np.array_equal(array, difference.jax))
    return next((plain(READ, ids=name) for name in alike), None)


def explain_ids(difference: Difference) -> Candidate | None:
    """Explain ids that are torch's plus a number, or that replace one id of torch's by another."""
    jax, torch = difference.jax.astype(np.int64), difference.torch.astype(np.int64)
    shifts = np.unique(jax - torch)
    if shifts.size == 1:
        return plain(SHIFTED, by=int(shifts[0]), clipped="")
    most, least = jax.max(), jax.min()
    for shift in shifts[shifts != 0]:
        if np.array_equal((torch + shift).clip(least, most), jax) and ((torch + shift != jax).sum() * 2 < jax.size):
            return plain(SHIFTED, by=int(shift), clipped=f", {most} at most" if shift > 0 else f", {least} at least")
    wrong = jax != torch
    mine, other = (np.unique(array[wrong]) for array in (jax, torch))
    if mine.size > 1 or other.size > 1:
        return None
    places = np.unique(np.nonzero(wrong)[-1])
    where = f" at position {places[0]}" if places.size == 1 and torch.ndim > 1 else ""
    return plain(TAKEN, jax=int(mine[0]), torch=int(other[0]), where=where)


def ordered(args: dict[str, Any]) -> str:
    """Return words for pieces along an axis in another order."""
    if args["waves"]:
        return f"jax joins sine and cosine the other way round: {WAVES[args['waves']]}"
    return f"jax has torch's entries along axis {{axis}}{{blocks}}, {PATTERNS[args['pattern']]}"


ORDERED = Change("order.along_an_axis", ordered, torch="")
EXCHANGED = replace(ORDERED, symptom=True)
"""Two rows of a batch in each other's place: an inverted mask gives them too, if each row has what the other lacks."""
MOST = 4096
MOST_BLOCKS = 32
"""Bound of the number of blocks into which the last axis is divided, as into heads."""


def explain_order(difference: Difference) -> Candidate | None:
    """Explain entries along an axis in another order: 'jax has torch's entries along axis 2, in 4 blocks of 6, from the last to
    the first'."""
    jax, torch = difference.jax, difference.torch
    if not np.isfinite(jax).all() or not np.isfinite(torch).all():
        return None
    width, last = torch.shape[-1] if torch.ndim > 1 else 0, torch.ndim - 1
    for axis in range(last):
        if order := order_along(jax, torch, axis, EXPLAINED):
            return in_order(axis, "", order, "")
    for n in (n for n in [*range(2, MOST_BLOCKS), width] if 1 < n <= width and width % n == 0):
        mine, other = (array.reshape(*array.shape[:-1], n, -1) for array in (jax, torch))
        if order := order_along(mine, other, last, EXPLAINED):
            blocks = f", in {n} blocks of {width // n}" if n < width else ""
            return in_order(last, blocks, order, first_wave(other[..., 0, :], other[..., 1, :]) if n == 2 else "")
    return None


def in_order(axis: int, blocks: str, order: list[int], waves: str) -> Candidate:
    """Build the candidate for pieces along an axis in this order."""
    name, by = pattern(order)
    change = EXCHANGED if axis == 0 and len(order) == 2 else ORDERED
    return plain(change, axis=axis, blocks=blocks, order=shown(order), pattern=name, by=by, waves=waves)


def shown(order: list[int]) -> str:
    """Describe an order: '3, 2, 1, 0'."""
    if len(shifts := np.unique((np.arange(len(order)) - order) % len(order))) == 1:
        return f"shifted by {shifts[0]} of {len(order)}, the last first"
    return ", ".join(map(str, order[:SHOWN])) + (", ..." if len(order) > SHOWN else "")


def order_along(jax: np.ndarray, torch: np.ndarray, axis: int, tolerance: float) -> list[int]:
    """Return the permutation of torch's entries along an axis that gives jax's, such as [3, 2, 1, 0]; empty if none does."""
    mine, other = (np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in (jax, torch))
    if not 1 < len(other) <= MOST or other.shape[1] < 2:
        return []
    product = mine @ other.T
    order = (np.square(mine).sum(1)[:, None] + np.square(other).sum(1) - 2 * product).argmin(1)
    if len(set(order.tolist())) < len(order) or (order == np.arange(len(order))).all():
        return []
    return [] if distance(other[order], mine) > tolerance else order.tolist()


FEW_ROWS = 4
ROWS_SHIFTED = Change("rows.shifted", shifted("rows"), torch="")
OTHER_ROWS = Change("rows.others", "jax looks up rows {jax}, ... where torch has {torch}, ...", torch="")


def explain_rows(difference: Difference) -> Candidate | None:
    """Explain a lookup of other rows: 'jax looks up rows 2 lower than torch's'.

    jax's array of the normal run is preferred: a module that runs alone may be given torch's ids, which may have another
    meaning for it.
    """
    table = difference.evidence.parameters.get("table")
    jax = difference.jax if difference.normal is None else difference.normal
    if table is None or (torch := rows_of(difference.torch, table)) is None or (mine := rows_of(jax, table)) is None:
        return None
    try:
        mine, torch = np.broadcast_arrays(mine, torch)
    except ValueError:
        return None
    shifts = np.unique(mine - torch)
    if shifts.size == 1:
        return plain(ROWS_SHIFTED, by=int(shifts[0]), clipped="") if shifts[0] else None
    wrong = mine != torch
    some = [tuple(rows[wrong][:FEW_ROWS].tolist()) for rows in (mine, torch)]
    return plain(OTHER_ROWS, jax=some[0], torch=some[1])


def rows_of(array: np.ndarray, table: np.ndarray) -> np.ndarray | None:
    """Return the numbers of the table's rows that an array has along its last axis; None if it has other vectors."""
    if array.ndim < 2 or array.shape[-1] != table.shape[1] or array.dtype.kind != "f":
        return None
    numbers = {row.tobytes(): i for i, row in reversed([*enumerate(table.astype(np.float64))])}
    found = [numbers.get(row.tobytes(), -1) for row in array.astype(np.float64).reshape(-1, table.shape[1])]
    return np.array(found).reshape(array.shape[:-1]) if -1 not in found else None


LATER = Change("calls.later", "goes on with {other}, which torch runs later", "goes on with {usual}")


def explain_later(difference: Difference) -> Candidate | None:
    """Explain jax's array by what a later child gives: JAX runs the children in another order."""
    usual, other = named(difference.torch, difference.evidence.before), named(difference.jax, difference.evidence.later)
    if usual is None or other is None:
        return None
    return plain(LATER, distance(difference.evidence.later[other], difference.jax), usual=usual, other=other)


def named(array: np.ndarray, among: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the first of these arrays that is equal up to rounding; None if none is."""
    alike = (name for name, each in among.items() if each.shape == array.shape and distance(each, array) <= EXPLAINED)
    return next(alike, None)
