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

from jaxformer.parity.axes import CLEAR, Order, as_theirs, distances, laid, orders_for
from jaxformer.parity.loading import joined, parted
from jaxformer.parity.records import Record, Trace, arrays_in, replaced
from jaxformer.parity.watch import CALL, Site
from jaxformer.parity.watch_jax import run_once, watch_jax

Ends = tuple[Site, Site | None]
"""A module, and its child if one is meant."""


class Place(NamedTuple):
    """One array of one of our calls."""

    site: Site
    part: str
    """'inputs' or 'output'."""
    number: int
    """Among torch's."""


@dataclass(frozen=True)
class Gap:
    """An array of ours beside torch's, and whose doing the difference is."""

    owner: Site
    child: Site | None
    """Of ours, where the array is on its way into one of the owner's children; None for its output."""
    what: str
    """Which array it is: its output, the input of a child, the gradient of a weight."""
    ours: np.ndarray
    """As torch has its axes."""
    theirs: np.ndarray
    place: Place | None = None
    """Where it is, the part being one of a record; None for the gradient of a weight."""


@dataclass(frozen=True)
class Isolated:
    """What the pass found."""

    gaps: list[Gap]
    """Of values."""
    gradient_gaps: list[Gap]
    weights: Any
    """The gradients of the model's arrays, each from its own modules' code alone; None if none were asked for."""
    orders: Mapping[Place, Order] = field(default_factory=dict)
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
) -> Isolated:
    """What each paired JAX module makes of torch's arrays; `pairs` leads from our calls to torch's. Of those in `counted`,
    only the entries that are True there count."""
    records = {site: theirs[other] for site, other in pairs.items()}
    forced, pulls = _floats(records, "inputs", "output"), _floats(records, "input_gradients", "output_gradients")
    weights, rest = parted(model)
    notes: list[_Forcing] = []

    def run(forced: Mapping[Place, Any], weights: Any, pulls: Mapping[Place, Any]) -> tuple[Any, Any]:
        forcing = _Forcing(records, forced, pulls, counted)
        notes[:] = [forcing]
        model = joined(weights, rest)
        with watch_jax(model, forcing), jax.disable_jit():
            forcing.leave(CALL, call(model, *inputs))
        return forcing.total, [(pair.ours, pair.chosen) for pair in forcing.found]

    if gradients:
        ((_, found), (back, own)), _ = run_once(jax.value_and_grad(run, (0, 1), has_aux=True), forced, weights, pulls)
    else:
        ((_, found), _), back, own = run_once(run, forced, weights, {}), {}, None
    (forcing,) = notes
    gaps, orders = [], {}
    for pair, (ours, chosen) in zip(forcing.found, found, strict=True):
        order = orders[pair.place] = pair.orders[int(chosen)]
        mine, array = as_theirs(np.asarray(ours), order, pair.theirs.shape), pair.theirs
        if pair.place.site in counted:
            mine, array = (np.where(counted[pair.place.site], side, 0) for side in (mine, array))
        owner, child = pair.maker
        gaps.append(Gap(owner, child, "output" if child is None else f"input of {child}", mine, array, pair.place))
    gradient_gaps = []
    for place, (owner, child) in forcing.senders.items():
        if place in back and place in pulls:
            what = "gradient of its input" if child is None else f"gradient it sends to {child}"
            sent = place._replace(part=f"{place.part.removesuffix('s')}_gradients")
            gradient_gaps.append(Gap(owner, child, what, np.asarray(back[place]), np.asarray(pulls[place]), sent))
    return Isolated(gaps, gradient_gaps, own, orders)


def _floats(records: Mapping[Site, Record], inputs: str, output: str) -> dict[Place, Any]:
    """The float arrays of all records, by where they are."""
    return {
        Place(site, part, i): jnp.asarray(array)
        for site, record in records.items()
        for part, name in (("inputs", inputs), ("output", output))
        for i, array in enumerate(getattr(record, name))
        if array is not None and np.issubdtype(array.dtype, np.floating)
    }


class _Pair(NamedTuple):
    """One of our arrays, and torch's in its place."""

    maker: Ends
    place: Place
    theirs: np.ndarray
    orders: tuple[Order, ...]
    """That fit."""
    ours: Any
    chosen: Any
    """The number of the order that was taken."""


class _Forcing:
    """Puts torch's arrays in place of ours, and notes both."""

    def __init__(
        self,
        records: Mapping[Site, Record],
        forced: Mapping[Place, Any],
        pulls: Mapping[Place, Any],
        counted: Mapping[Site, np.ndarray],
    ):
        self.records, self.forced, self.pulls, self.counted = records, forced, pulls, counted
        self.open: list[Site] = []
        self.tapped: set[Site] = set()
        """Calls without an argument: it cannot be told whose code uses what they give."""
        self.found: list[_Pair] = []
        self.orders: dict[tuple[int, str], Any] = {}
        """The last that was plain, of arrays with so many axes; attention's scores and weights have theirs."""
        self.senders: dict[Place, Ends] = {}
        """Whose code sends a gradient back to a place, and to which child's output."""
        self.total = jnp.zeros(())
        """Its gradient is torch's, wherever ours end."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the model itself is called with is the user's; what a module hands to another is the module's."""
        if site not in self.records:
            return arguments
        if not arrays_in(arguments):
            self.tapped.add(site)
        elif self.open:
            arguments = self._force(arguments, site, "inputs", (self.open[-1], site), (site, None))
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
            place, counts = Place(site, part, i), self.counted.get(site)
            orders, chosen = self._order(place, theirs, array, counts)

            def lay(theirs: Any, shape: Any = array.shape, orders: Any = orders, chosen: Any = chosen) -> Any:
                cases = [laid(jnp.asarray(theirs), order, shape) for order in orders]
                return jax.lax.select_n(chosen, *cases) if len(cases) > 1 else cases[0]

            self.found.append(_Pair(maker, place, theirs, orders, array, chosen))
            instead = lay(self.forced.get(place, theirs)).astype(array.dtype)
            if place in self.pulls:
                self.total += (array * lay(self.pulls[place])).sum()
                self.senders |= {} if site == CALL or site in self.tapped else {place: sender}
            elif jnp.issubdtype(array.dtype, jnp.inexact):
                instead = instead if counts is None else jnp.where(lay(counts), instead, jax.lax.stop_gradient(array))
                instead += jnp.where(jnp.isfinite(array), array - jax.lax.stop_gradient(array), jnp.zeros_like(array))
            put.append(instead)
        return replaced(value, ours, put)

    def _order(self, place: Place, theirs: np.ndarray, ours: Any, counts: np.ndarray | None) -> tuple[tuple[Order, ...], Any]:
        """The orders of torch's axes that fit, and the number of the one to take: that in which torch's array is by far the
        nearest to ours, or else the last that was plain. What comes in is right, unless the caller is wrong: so a module
        whose output is near to nothing is taken to leave the axes as it found them."""
        site, orders = place.site, orders_for(theirs.shape, ours.shape)
        if site == CALL and theirs.shape == ours.shape:
            orders = orders[:1]  # nobody is there to turn it
        key, every = (theirs.ndim, site.path.rpartition(".")[2] if site in self.counted else ""), np.asarray(orders)
        if len(orders) == 1:
            self.orders[key] = every[0]
            return orders, 0
        both = jax.lax.stop_gradient((self.forced.get(place, jnp.asarray(theirs)), ours))
        gaps = distances(*both, orders, None if counts is None else jnp.asarray(counts), jnp)
        last = self.orders.get(key, every[0])
        usual, best = jnp.argmax((jnp.asarray(every) == last[None]).all(-1)), jnp.argmin(gaps)
        nearest, second = jnp.sort(gaps)[:2]
        chosen = jnp.where(nearest < CLEAR * gaps[usual], best, usual)
        self.orders[key] = jnp.where(nearest < CLEAR * second, jnp.asarray(every)[best], last)
        return orders, chosen.astype(jnp.int32)


def _first_fitting(theirs: list[tuple[int, np.ndarray]], ours: Any, *, every: bool) -> tuple[int, np.ndarray] | None:
    """The first of torch's arrays that has our kind of numbers (or `every` kind) and, in some order of axes, our shape. Masks
    stay, since their sense may differ."""
    for i, array in theirs:
        if (every or _kind(array.dtype) == _kind(ours.dtype) != "bool_") and orders_for(array.shape, ours.shape):
            return i, array
    return None


def _kind(dtype: Any) -> str:
    kinds = ("floating", "integer", "complexfloating", "bool_")
    return next(kind for kind in kinds if jnp.issubdtype(dtype, getattr(jnp, kind)))
