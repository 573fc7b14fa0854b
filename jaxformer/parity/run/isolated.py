"""Each JAX module on torch's own ground.

Along a normal run an error spreads: every module behind a bug is off. So each module is given the inputs that torch's module
had, and everything around it the outputs that torch's module gave; on the way back, the gradients that torch's had. Then a
module is off only if its own code is: in what it hands to its children, in what it returns, and in what it sends back.
All of it is one pass: torch's arrays are put in place of ours wherever a paired call begins or ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.parity.capture.call_records import Record, Trace, arrays_in, replaced
from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.capture.jax_hooks import run_once, watch_jax
from jaxformer.parity.numerics.axis_order import Order, nearer_order, orders_for, plain_order, to_jax_axes, to_torch_axes
from jaxformer.parity.numerics.float_masks import is_left, kind_of
from jaxformer.parity.run.load_weights import joined, parted

MOST_PASSES = 6
"""So often at most it is done again with other orders of axes."""
Ends = tuple[Site, Site | None]
"""A module, and its child if one is meant."""


@dataclass(frozen=True)
class Mismatch:
    """An array of ours beside torch's, and whose doing the difference is."""

    owner: Site
    child: Site | None
    """Of ours, where the array is on its way into one of the owner's children; None for its output."""
    what: str
    """Which array it is: its output, the input of a child, the gradient of a weight."""
    ours: np.ndarray
    """As torch has its axes."""
    theirs: np.ndarray
    place: ArrayKey | None = None
    """Where it is, the part being one of a record; None for the gradient of a weight."""
    reader: Site = CALL
    """Whose code goes on with it."""


@dataclass(frozen=True)
class Isolated:
    """What the pass found."""

    mismatches: list[Mismatch]
    """Of values."""
    gradient_mismatches: list[Mismatch]
    weights: Any
    """The gradients of the model's arrays, each from its own modules' code alone; None if none were asked for."""
    orders: Mapping[ArrayKey, Order] = field(default_factory=dict)
    """Of torch's axes in our arrays."""


def isolate(
    model: Any,
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    theirs: Trace,
    pairs: Mapping[Site, Site],
    *,
    gradients: bool,
    counted: Mapping[Site, np.ndarray],
    orders: Mapping[ArrayKey, Order],
    corrected: bool = True,
) -> Isolated:
    """What each paired JAX module makes of torch's arrays; `pairs` leads from our calls to torch's. Of those in `counted`,
    only the entries that are True there count. `orders` of torch's axes are what is known so far: where what comes out shows
    that one was wrong, or that one not known was taken wrongly, it is done again, if they are to be `corrected`."""
    given = {"gradients": gradients, "counted": counted}
    isolated, wrong = isolation(model, call, inputs, theirs, pairs, orders=orders, **given)({})
    for _ in range(MOST_PASSES if corrected else 0):
        if not wrong:
            break
        orders = {**orders, **wrong}
        isolated, wrong = isolation(model, call, inputs, theirs, pairs, orders=orders, **given)({})
    return isolated


def isolation(
    model: Any,
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    theirs: Trace,
    pairs: Mapping[Site, Site],
    *,
    gradients: bool,
    counted: Mapping[Site, np.ndarray],
    orders: Mapping[ArrayKey, Order],
) -> Callable[[Mapping[ArrayKey, bool]], tuple[Isolated, dict[ArrayKey, Order]]]:
    """One pass, compiled once for all sets of the same places: at those that are True, ours stay. It gives also, of the orders
    that were taken, the first in place of which another is by far nearer: what comes behind it was made of axes in a wrong
    order."""
    records = {site: theirs[other] for site, other in pairs.items()}
    forced, cotangents = _floats(records, "inputs", "output"), _floats(records, "input_gradients", "output_gradients")
    weights, rest = parted(model)
    notes: list[_Patching] = []

    def run(
        forced: Mapping[ArrayKey, Any], weights: Any, cotangents: Mapping[ArrayKey, Any], opened: Mapping[ArrayKey, Any]
    ) -> tuple[Any, Any]:
        patching = _Patching(records, forced, cotangents, counted, orders, opened)
        notes[:] = [patching]
        model = joined(weights, rest)
        with watch_jax(model, patching), jax.disable_jit():
            patching.leave(CALL, call(model, *inputs))
        return patching.total, [pair.ours for pair in patching.found]

    program = jax.value_and_grad(run, (0, 1), has_aux=True) if gradients else run

    def isolated(opened: Mapping[ArrayKey, bool]) -> tuple[Isolated, dict[ArrayKey, Order]]:
        given, _ = run_once(program, forced, weights, cotangents if gradients else {}, opened)
        (_, found), (back, own) = given if gradients else (given, ({}, None))
        (patching,) = notes
        mismatches, wrong = _mismatches(patching, list(map(np.asarray, found)))
        sent = {
            place: (np.asarray(back[place]), cotangents[place])
            for place in back
            if place in cotangents and not opened.get(place)
        }
        taken = {pair.place: pair.order for pair in patching.found}
        return Isolated(mismatches, _gradient_mismatches(patching, sent), own, taken), wrong

    return isolated


def _mismatches(patching: "_Patching", found: list[np.ndarray]) -> tuple[list[Mismatch], dict[ArrayKey, Order]]:
    """Of values; and the first order that was taken wrongly."""
    mismatches, wrong = [], {}
    for pair, ours in zip(patching.found, found, strict=True):
        counts, array = patching.counted.get(pair.place.site), pair.theirs
        if not wrong and not pair.fixed and (order := nearer_order(array, ours, pair.order, counts)) != pair.order:
            wrong = {pair.place: order}
        mine = to_torch_axes(ours, pair.order, array.shape)
        if counts is not None:
            mine, array = (np.where(counts, side, 0) for side in (mine, array))
        (owner, child), (reader, _) = pair.maker, pair.sender
        mismatches.append(
            Mismatch(owner, child, "output" if child is None else f"input of {child}", mine, array, pair.place, reader)
        )
    return mismatches, wrong


def _gradient_mismatches(patching: "_Patching", sent: Mapping[ArrayKey, tuple[np.ndarray, Any]]) -> list[Mismatch]:
    """Of what was sent back to where torch's arrays were put in place of ours."""
    mismatches = []
    for place, (owner, child) in patching.senders.items():
        if place in sent:
            what = "gradient of its input" if child is None else f"gradient it sends to {child}"
            ours, theirs = sent[place]
            back = place._replace(part=f"{place.part.removesuffix('s')}_gradients")
            mismatches.append(Mismatch(owner, child, what, ours, np.asarray(theirs), back))
    return mismatches


def _floats(records: Mapping[Site, Record], inputs: str, output: str) -> dict[ArrayKey, Any]:
    """The float arrays of all records, by where they are."""
    return {
        ArrayKey(site, part, i): jnp.asarray(array)
        for site, record in records.items()
        for part, name in (("inputs", inputs), ("output", output))
        for i, array in enumerate(getattr(record, name))
        if array is not None and np.issubdtype(array.dtype, np.floating)
    }


class _Pair(NamedTuple):
    """One of our arrays, and torch's in its place."""

    maker: Ends
    sender: Ends
    """Whose code goes on with it, and sends a gradient back."""
    place: ArrayKey
    theirs: np.ndarray
    order: Order
    """The one that was taken, of torch's axes."""
    fixed: bool
    """Whether it is the only one that can be."""
    ours: Any


class _Patching:
    """Puts torch's arrays in place of ours, and notes both."""

    def __init__(
        self,
        records: Mapping[Site, Record],
        forced: Mapping[ArrayKey, Any],
        cotangents: Mapping[ArrayKey, Any],
        counted: Mapping[Site, np.ndarray],
        known: Mapping[ArrayKey, Order],
        opened: Mapping[ArrayKey, Any],
    ):
        self.records, self.forced, self.cotangents, self.counted, self.known = records, forced, cotangents, counted, known
        self.opened = opened
        self.open: list[Site] = []
        self.tapped: set[Site] = set()
        """Calls without an argument: it cannot be told whose code uses what they give."""
        self.found: list[_Pair] = []
        self.orders = {self._kind(place.site, len(order)): order for place, order in reversed([*known.items()])}
        """The last that was known, of arrays of a kind; before there is one, the first that is known of later ones."""
        self.senders: dict[ArrayKey, Ends] = {}
        """Whose code sends a gradient back to a place, and to which child's output."""
        self.total = jnp.zeros(())
        """Its gradient is torch's, wherever ours end."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the model itself is called with is the user's; what a module hands to another is the module's, and what the
        user's function hands to one inside of the model is that function's."""
        if site not in self.records:
            return arguments
        if not arrays_in(arguments):
            self.tapped.add(site)
        elif self.open or site.path:
            arguments = self._force(arguments, site, "inputs", (self.open[-1] if self.open else CALL, site), (site, None))
        self.open.append(site)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        if site not in self.records:
            return output
        if self.open:
            self.open.pop()
        around = self.open[-1] if self.open else CALL
        return self._force(output, site, "output", (site, None), (around, site))

    def _force(self, value: Any, site: Site, part: str, maker: Ends, sender: Ends) -> Any:
        """Our arrays, in their order, against torch's of the same shape and kind; where torch has no gradient, ours passes."""
        left, ours, put = list(enumerate(getattr(self.records[site], part))), arrays_in(value), []
        for array in ours:
            found = _first_fitting(left, array, every=site == CALL)
            if found is None:
                put.append(array)
                continue
            i, theirs = found
            left = [(j, other) for j, other in left if j > i]
            place, counts = ArrayKey(site, part, i), self.counted.get(site)
            order, fixed = self._order(place, theirs, array.shape)

            def lay(theirs: Any, shape: Any = array.shape, order: Order = order) -> Any:
                return to_jax_axes(jnp.asarray(theirs), order, shape)

            instead = lay(self.forced.get(place, theirs)).astype(array.dtype)
            if part == "inputs" and (kind := kind_of(theirs)):
                same = is_left(kind, instead, array)
                instead, shown = jnp.where(same, array, instead), jnp.where(same, instead, array)
            else:
                shown = array
            self.found.append(_Pair(maker, sender, place, theirs, order, fixed, shown))
            if place in self.cotangents:
                pulled = (array * lay(self.cotangents[place])).sum()
                self.total += jnp.where(self.opened[place], 0.0, pulled) if place in self.opened else pulled
                self.senders |= {} if site == CALL or site in self.tapped else {place: sender}
            elif jnp.issubdtype(array.dtype, jnp.inexact):
                instead = instead if counts is None else jnp.where(lay(counts), instead, jax.lax.stop_gradient(array))
                instead += jnp.where(jnp.isfinite(array), array - jax.lax.stop_gradient(array), jnp.zeros_like(array))
            put.append(jnp.where(self.opened[place], array, instead) if place in self.opened else instead)
        return replaced(value, ours, put)

    def _order(self, place: ArrayKey, theirs: np.ndarray, shape: tuple[int, ...]) -> tuple[Order, bool]:
        """The order of torch's axes in our array, and whether it is the only one that can be: the known one, or else the last
        that was. What comes in is right, unless the caller is wrong: so a module whose output is near to nothing is taken to
        leave the axes as it found them."""
        orders = orders_for(theirs.shape, shape)
        if place.site == CALL and theirs.shape == shape:
            orders = orders[:1]  # nobody is there to turn it
        kind = self._kind(place.site, theirs.ndim)
        only = len(orders) == 1
        order = orders[0] if only else self.known.get(place, self.orders.get(kind))
        if order is not None and (only or place in self.known):
            self.orders[kind] = order
        return (orders[0] if order is None or order not in orders else order), only

    def _kind(self, site: Site, n_axes: int) -> tuple[int, str]:
        """Arrays of as many axes are laid alike; attention's scores and weights are kinds of their own."""
        return n_axes, site.path.rpartition(".")[2] if site in self.counted else ""


def plain_orders(
    ours: Mapping[Site, list[np.ndarray]], theirs: Trace, pairs: Mapping[Site, Site], counted: Mapping[Site, np.ndarray]
) -> dict[ArrayKey, Order]:
    """Of what our calls give along the normal run: the orders of torch's axes that are plain, in torch's call order."""
    found, back = {}, {other: mine for mine, other in pairs.items()}
    for site in (back[other] for other in theirs if other in back and other != CALL):
        left = list(enumerate(theirs[pairs[site]].output))
        for array in ours[site]:
            if (fitting := _first_fitting(left, array, every=False)) is not None:
                number, other = fitting
                left = [(i, each) for i, each in left if i > number]
                if (order := plain_order(other, array, counted.get(site))) is not None:
                    found[ArrayKey(site, "output", number)] = order
    return found


def _first_fitting(theirs: list[tuple[int, np.ndarray]], ours: Any, *, every: bool) -> tuple[int, np.ndarray] | None:
    """The first of torch's arrays that has our kind of numbers (or `every` kind) and, in some order of axes, our shape. Masks
    of booleans stay, since their sense may differ."""
    for i, array in theirs:
        if (every or _kind(array.dtype) == _kind(ours.dtype) != "bool_") and orders_for(array.shape, ours.shape):
            return i, array
    return None


def _kind(dtype: Any) -> str:
    kinds = ("floating", "integer", "complexfloating", "bool_")
    return next(kind for kind in kinds if jnp.issubdtype(dtype, getattr(jnp, kind)))
