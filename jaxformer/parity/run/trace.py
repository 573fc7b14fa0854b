"""Both sides' runs, and which call of jax is which of torch: what the table of modules is made of."""

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.convert.rules import Family, gradients_to_torch
from jaxformer.errors import ParityError
from jaxformer.parity.capture.attention_calls import valid_entries
from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.numerics.axis_order import Order, order_of, repeated, to_jax_axes
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import cast, jax_float64, to_float64
from jaxformer.parity.numerics.float_masks import one_number
from jaxformer.parity.numerics.metrics import EXACT, Error, Kind, Noise, as_float64, difference, is_null
from jaxformer.parity.record.reference import Reference, saying
from jaxformer.parity.record.rounding import Perturbed
from jaxformer.parity.record.rounding_error import holders
from jaxformer.parity.run.candidate import Candidate
from jaxformer.parity.run.end_to_end import NormalRun, propagate
from jaxformer.parity.run.fit_arrays import plain_orders
from jaxformer.parity.run.isolated import Isolated, Isolation, Mismatch
from jaxformer.parity.run.load_weights import ready
from jaxformer.parity.run.pair_attention import pair_attention
from jaxformer.parity.run.pair_modules import (
    holder,
    pair_calls,
    pair_modules,
    pair_without_parameters,
    parameter_pairs,
    without_helpers,
    without_uneven_gradients,
)
from jaxformer.parity.run.turned_axes import clearer, odd_orders

EQUAL = Error(0.0, 0.0)


@dataclass(frozen=True)
class Traced:
    """Both sides' calls, and which of jax's is which of torch's."""

    reference: Reference
    model: Any
    """The JAX model with torch's weights, in float32."""
    rules: Family
    ours: NormalRun
    pairs: Mapping[Site, Site]
    """jax's -> torch's."""
    isolated: Isolated
    again: Callable[[], Callable[[Mapping[ArrayKey, bool]], Isolated]]
    """Compiles the pass module by module once more, so that arrays of jax may stay."""
    counted: Mapping[Site, np.ndarray] = field(default_factory=dict)
    """Of jax's taps that are attention's scores or weights: which entries of torch's count."""
    hints: dict[Any, Any] = field(default_factory=dict)
    """What explained other modules of this run: layers repeat, and so do their bugs."""
    tables: tuple[str, ...] = ()
    """In words: the tables that jax's code computes, in place of which torch's were taken."""
    opened: frozenset[ArrayKey] = frozenset()
    """Where jax's array stayed, since both sides divide the work otherwise; nothing is compared there."""
    divided: frozenset[Site] = frozenset()
    """jax's calls on both sides of these borders."""

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """torch's in float64, tied ones by all their names."""
        held = {name: as_float64(array) for name, array in self.reference.weights.items()}
        return held | {name: held[first] for name, first in self.reference.tied.items()}

    @cached_property
    def names(self) -> dict[str, str]:
        """torch's modules with tensors of their own -> jax's that hold these, each those of one of torch's."""
        pairs = parameter_pairs(self.model, self.rules).items()
        both = {(theirs.rpartition(".")[0], ours.rpartition(".")[0]) for ours, theirs in pairs}
        counts = Counter(ours for _, ours in both)
        return {theirs: ours for theirs, ours in sorted(both) if counts[ours] == 1}

    @cached_property
    def gradients(self) -> dict[str, np.ndarray]:
        """jax's, of weights and inputs, by torch's names."""
        ours = gradients_to_torch(self.ours.weights, self.rules, self.reference.weights)
        ours |= {f"input {i}": array for i, array in self.ours.inputs.items()}
        return {name: ours[name] for name in self.reference.gradients}

    @cached_property
    def normal(self) -> dict[Site, Error | None]:
        """The error of what each call gives in the normal run."""
        both = self.reference, self.counted, self.isolated.orders
        return {pair[0]: propagated(self.ours, both[0], pair, *both[1:], self.opened) for pair in self.pairs.items()}

    @cached_property
    def values(self) -> list[tuple[Error, Mismatch]]:
        """The error of each array that a module makes of torch's."""
        return [(self.off(mismatch), mismatch) for mismatch in self.isolated.mismatches if mismatch.place not in self.opened]

    def off(self, mismatch: Mismatch) -> Error:
        """The error of an array of values."""
        ours = one_number(mismatch.ours, mismatch.theirs, inside=mismatch.place is None or mismatch.place.site != CALL)
        return error(ours, mismatch.theirs, rounding=self.moved(mismatch))

    @cached_property
    def larger(self) -> set[str]:
        """torch's modules whose JAX code also does the work of a module inside of them that JAX does not call."""
        known = {other.path for other in self.pairs.values()}
        return {holder(site.path, known) for site in holders(self.reference) if site.path not in known}

    def rounding_of(self, owner: Site) -> Perturbed:
        """How far rounding moves what a module's own code makes of torch's arrays; where jax's code does more than torch's
        module, how far it moves them in the normal run, which is more."""
        rounding = self.reference.rounding
        return rounding.run if self.pairs[owner].path in self.larger else rounding.alone

    def moved(self, mismatch: Mismatch) -> Noise:
        """How far rounding moves torch's array."""
        if mismatch.place is None:
            return EXACT
        site, part, number = mismatch.place
        return self.rounding_of(mismatch.owner).get(ArrayKey(self.pairs[site], part, number), EXACT)


def trace(reference: Reference, candidate: Candidate, *, local: bool, gradients: bool) -> Traced:
    """Run the JAX model in float64: its normal run, and module by module on torch's arrays. If only the normal run is asked
    for, the second is left out where the first is equal."""
    reference = without_absent(reference, candidate.family)
    model, call, tables = candidate.like, candidate.call, Tables(candidate.tables)
    with jax_float64(tables), saying("jax in float64"):
        model64 = ready(to_float64(model), training=False)
        inputs = tuple(cast(list(map(jnp.asarray, reference.inputs)), jnp.float64))
        ours = propagate(model64, call, inputs, reference.cotangent if gradients else None)
        pairs, counts, reference = paired(ours, reference, parameter_pairs(model, candidate.family))
        isolation = Isolation(model64, call, inputs, reference.calls, pairs, counts, gradients)
        orders = plain_orders(ours.outputs, reference.calls, pairs, counts)
        isolated = Isolated([], [], None, {**orders, ArrayKey(CALL, "output", 0): tuple(range(reference.output.ndim))})
        normal = (propagated(ours, reference, pair, counts, isolated.orders) for pair in pairs.items())
        if local or gradients or any(over(each, "activation") for each in normal if each):
            isolated = isolation.run(orders)
            outcome = propagated(ours, reference, (CALL, CALL), counts, isolated.orders) or EQUAL
            if over(outcome, "activation"):
                isolated = in_odd_orders(isolated, counts, isolation)

    def again() -> Callable[[Mapping[ArrayKey, bool]], Isolated]:
        with jax_float64(tables):
            one_pass = isolation.compiled(isolated.orders)

        def isolated_at(opened: Mapping[ArrayKey, bool]) -> Isolated:
            with jax_float64(tables), saying("jax in float64"):
                return one_pass(opened)[0]

        return isolated_at

    return Traced(reference, model, candidate.family, ours, pairs, isolated, again, counts, tables=tables.says())


def paired(
    ours: NormalRun, reference: Reference, parameters: Mapping[str, str]
) -> tuple[dict[Site, Site], dict[Site, np.ndarray], Reference]:
    """jax's calls -> torch's; of attention's scores and weights, which entries count; and the reference without the gradients
    of calls that are divided otherwise."""
    own, other = ({site.path for site in sites} for sites in (ours.outputs, reference.calls))
    modules = pair_modules(own, other, parameters)
    modules |= pair_without_parameters(ours.outputs, reference.calls, parameters, modules)
    calls, all_calls = (without_helpers(ours.outputs, reference.calls, modules, whole=whole) for whole in (False, True))
    pairs = pair_calls(calls, reference.calls, modules)
    left = {site: arrays for site, arrays in ours.outputs.items() if site not in pairs}
    attention = pair_attention(left, reference.calls, parameters)
    counts = {site: valid_entries(other, reference.calls, left[site][0]) for site, other in attention.items()}
    reference = replace(reference, calls=without_uneven_gradients(reference.calls, all_calls, pairs))
    return {**pairs, **attention, CALL: CALL}, counts, reference


def without_absent(reference: Reference, rules: Family) -> Reference:
    """The reference without the weights that the JAX model leaves out."""
    weights, gradients = (
        {name: array for name, array in arrays.items() if rules.why_ignored(name) is None}
        for arrays in (reference.weights, reference.gradients)
    )
    return replace(reference, weights=weights, gradients=gradients)


def in_odd_orders(isolated: Isolated, counts: Mapping[Site, np.ndarray], isolation: Isolation) -> Isolated:
    """With the axes that one module alone gives in another order, where that makes fewer modules differ."""
    odd = odd_orders(isolated, counts)
    if not odd:
        return isolated
    other = isolation.run({**isolated.orders, **odd}, corrected=False)
    return other if clearer(isolated, other, odd, wrong_owners) else isolated


def wrong_owners(isolated: Isolated) -> set[Site]:
    """Modules whose own code gives other values, rounding set aside."""
    return {mismatch.owner for mismatch in isolated.mismatches if over(error(mismatch.ours, mismatch.theirs), "activation")}


def propagated(
    ours: NormalRun,
    reference: Reference,
    pair: tuple[Site, Site],
    counts: Mapping[Site, np.ndarray],
    orders: Mapping[ArrayKey, Order],
    opened: Container[ArrayKey] = (),
) -> Error | None:
    """The largest error of what a call gives in the normal run; None where no array of it fits, or all are at open borders.
    Orders of axes that are not known are searched for."""
    counted, found = counts.get(pair[0]), []
    for i, (j, t) in enumerate(zip(ours.outputs[pair[0]], reference.calls[pair[1]].output, strict=False)):
        order = order_of(t, j, orders.get(ArrayKey(pair[0], "output", i)), counted)
        if ArrayKey(pair[0], "output", i) in opened or (order is None and not repeated(j, t)):
            continue
        j, t = np.broadcast_arrays(j, t) if order is None else (j, to_jax_axes(t, order, j.shape))
        if order is not None and counted is not None:
            j, t = (np.where(to_jax_axes(counted, order, j.shape), side, 0) for side in (j, t))
        j = one_number(j, t, inside=pair[0] != CALL)
        found.append(error(j, t, rounding=reference.rounding.run.get(ArrayKey(pair[1], "output", i), EXACT)))
    return max(found, key=lambda each: each.off("activation"), default=None)


def error(ours: np.ndarray, theirs: np.ndarray, noise: float = 0.0, rounding: Noise = EXACT) -> Error:
    """Infinite where shapes, NaN or infinities do not agree; nothing where both sides are no more than noise."""
    if (noise and is_null(ours, theirs, noise)) or (rounding != EXACT and rounding.explains(ours, theirs)):
        return EQUAL
    try:
        found = difference("", ours, theirs)
    except ParityError:
        return Error(float("inf"), float("inf"))
    return Error(found.relative, found.peak, *rounding.of(theirs))


def over(found: Error, kind: Kind) -> bool:
    """Whether an error is over its tolerance: tier A's, or the one that torch's own rounding relaxes."""
    relative, peak = found.allowed(kind)
    return not (found.relative <= relative and found.peak <= peak)
