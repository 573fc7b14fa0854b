"""Runs of both sides, and the pairing of their calls: the basis of the table of modules."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxformer.convert.rules import Family, gradients_to_torch
from jaxformer.errors import ParityError
from jaxformer.io.on_disk import kept
from jaxformer.parity.numerics.axis_order import order_of, repeated, to_jax_axes
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64
from jaxformer.parity.numerics.float_masks import one_number
from jaxformer.parity.numerics.metrics import EQUAL, EXACT, Error, Noise, error, over
from jaxformer.parity.pairing.arrays import as_long_as_jaxs, plain_orders
from jaxformer.parity.pairing.draws import DrawPairs
from jaxformer.parity.pairing.modules import (
    holder,
    numbered_stacks,
    pair_calls,
    pair_modules,
    pair_without_parameters,
    parameter_pairs,
    without_helpers,
    without_uneven_gradients,
)
from jaxformer.parity.pairing.taps import pair_attention, pair_taps
from jaxformer.parity.runs.activation_patching import PatchedProgram
from jaxformer.parity.runs.end_to_end import NormalRun, propagate
from jaxformer.parity.runs.isolated import Isolated, Isolation, Mismatch
from jaxformer.parity.runs.load_weights import Candidate, loaded64, ready, without_absent
from jaxformer.parity.runs.session import Session
from jaxformer.parity.runs.unusual_orders import in_usual_orders
from jaxformer.parity.trace.call_records import valid_entries
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, parent
from jaxformer.parity.trace.reference import Perturbed, Reference, saying
from jaxformer.parity.trace.rounding_error import holders
from jaxformer.pytree import is_weight, named_leaves
from jaxformer.runtime.memory import give_back_freed_memory

WHERE = "jax in float64"


class Scale(NamedTuple):
    """Scale that one side applies inside a call, and the other side after it."""

    behind: Site
    """jax's call whose code applies the scale."""
    says: str


@dataclass(frozen=True)
class Traced:
    """Calls of both sides, and which of jax's calls corresponds to which of torch's."""

    reference: Reference
    model: Any
    """JAX model with torch's weights, in float32."""
    rules: Family
    normal_run: NormalRun
    """Normal run of the JAX model."""
    pairs: Mapping[Site, Site]
    """jax's calls -> torch's calls."""
    valid: Mapping[Site, np.ndarray]
    """Entries of torch's attention scores and weights that are compared, by jax's tap."""
    isolated: Isolated
    isolation: Isolation
    tables: Tables
    """torch's tables, which replace those that jax's code computes."""
    session: Session = field(default_factory=Session)
    """State of the search for causes."""
    opened: frozenset[ArrayKey] = frozenset()
    """Open boundaries: jax's array stayed because both sides divide the work differently; nothing is compared there."""
    divided: frozenset[Site] = frozenset()
    """jax's calls on both sides of the open boundaries."""
    scales: Mapping[Site, Scale] = field(default_factory=dict)
    """Scales of jax's calls that are right except for a scale inside torch's; jax's later code has another number."""
    draws: DrawPairs | None = None
    """Draws of both sides; None in inference mode."""
    padding: tuple[str, ...] = ()
    """Rows of torch's tables that jax trains despite `padding_idx`; `reference.gradients` then includes their gradients."""
    no_gradients: ParityError | None = None
    """Reason why JAX cannot differentiate the model, if gradients were requested."""

    @cached_property
    def constants(self) -> dict[str, np.ndarray]:
        """jax's own arrays that are neither weights nor random keys: integers, and floats that are not trained."""
        own = {name: leaf for name, leaf in named_leaves(self.model).items() if getattr(leaf.dtype, "kind", "key") in "iuf"}
        return {name: np.asarray(leaf) for name, leaf in own.items() if not is_weight(leaf) or name in self.rules.constants}

    @cached_property
    def stacks(self) -> frozenset[str]:
        """jax's modules in which each layer has calls of its own."""
        return numbered_stacks(site.path for site in self.normal_run.outputs)

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Names of the JAX parameters, layer by layer -> torch's."""
        return parameter_pairs(self.model, self.rules, self.stacks)

    @cached_property
    def names(self) -> dict[str, str]:
        """torch's modules with tensors of their own -> jax's modules that hold these and no other torch module's tensors."""
        pairs = self.parameters.items()
        both = {(parent(torch), parent(jax)) for jax, torch in pairs}
        counts = Counter(jax for _, jax in both)
        return {torch: jax for torch, jax in sorted(both) if counts[jax] == 1}

    @cached_property
    def gradients(self) -> Mapping[str, np.ndarray]:
        """jax's gradients of weights and inputs, by torch's names."""
        weights = self.normal_run.weights
        jax = gradients_to_torch(weights(), self.rules, self.reference.weights) if weights else {}
        jax |= {f"input {i}": array for i, array in self.normal_run.inputs.items()}
        return kept({name: jax[name] for name in self.reference.gradients})

    @cached_property
    def boundaries(self) -> set[ArrayKey]:
        """Places of torch's arrays that replace jax's."""
        places = (mismatch.place for mismatch in self.isolated.mismatches if mismatch.place not in self.opened)
        return {place._replace(site=self.pairs[place.site]) for place in places if place}

    @cached_property
    def unfit(self) -> set[Site]:
        """jax's calls whose output fits none of torch's arrays in any order of axes, so that jax's array stays."""
        opened = {place.site for place in self.opened}
        return {site for site, found in self.normal.items() if found is None and site not in opened}

    @cached_property
    def untied(self) -> str:
        """Message about draws of both sides that cannot be paired; '' if there are none."""
        return self.draws.untied() if self.draws else ""

    @cached_property
    def normal(self) -> dict[Site, Error | None]:
        """Error of each call's output in the normal run."""
        return {site: self.propagated(site) for site in self.pairs}

    def propagated(self, site: Site) -> Error | None:
        """Largest error of a call's outputs in the normal run; None if no array fits, or all are at open boundaries."""
        return max(self.errors_of(site).values(), key=lambda each: each.off("activation"), default=None)

    def errors_of(self, site: Site) -> dict[int, Error]:
        """Error of each output of a call in the normal run, by index. Unknown orders of axes are searched for."""
        other, valid, found = self.pairs[site], self.valid.get(site), dict[int, Error]()
        for i, (j, t) in enumerate(zip(self.normal_run.outputs[site], self.reference.calls[other].output, strict=False)):
            place = ArrayKey(site, "output", i)
            order = order_of(t, j, self.isolated.orders.get(place), valid)
            if place in self.opened or (order is None and not repeated(j, t)):
                continue
            j, t = np.broadcast_arrays(j, t) if order is None else (j, to_jax_axes(t, order, j.shape))
            if order is not None and valid is not None:
                j, t = (np.where(to_jax_axes(valid, order, j.shape), side, 0) for side in (j, t))
            j = one_number(j, t, inside=site != CALL)
            rounding = self.reference.rounding.run.get(ArrayKey(other, "output", i), EXACT)
            found[i] = error(j, t, rounding=rounding)
        return found

    @cached_property
    def values(self) -> list[tuple[Error, Mismatch]]:
        """Error of each array that a module makes from torch's arrays."""
        return [(self.off(mismatch), mismatch) for mismatch in self.isolated.mismatches if mismatch.place not in self.opened]

    @cached_property
    def compared(self) -> dict[ArrayKey, np.ndarray]:
        """jax's arrays, by torch's places; without those that are right in the normal run only, where the work is divided
        differently."""
        found = {}
        for off, mismatch in self.values:
            if (place := mismatch.place) and place.site not in self.valid:
                outcome = self.normal[place.site]
                if not over(off, "activation") or outcome is None or over(outcome, "activation"):
                    found[place._replace(site=self.pairs[place.site])] = mismatch.jax
        return found

    def off(self, mismatch: Mismatch) -> Error:
        """Error of an array of values."""
        jax = one_number(mismatch.jax, mismatch.torch, inside=mismatch.place is None or mismatch.place.site != CALL)
        return error(jax, mismatch.torch, rounding=self.perturbed(mismatch))

    @cached_property
    def larger(self) -> set[str]:
        """torch's modules whose JAX code also does the work of a module inside them that JAX does not call."""
        known = {other.path for other in self.pairs.values()}
        return {holder(site.path, known) for site in holders(self.reference) if site.path not in known}

    def rounding_of(self, owner: Site) -> Perturbed:
        """Perturbation by rounding of the arrays that a module's own code makes from torch's.

        If jax's code does more than torch's module, the perturbation in the normal run, which is larger.
        """
        rounding = self.reference.rounding
        return rounding.run if self.pairs[owner].path in self.larger else rounding.alone

    def perturbed(self, mismatch: Mismatch) -> Noise:
        """Perturbation of torch's array by rounding."""
        if mismatch.place is None:
            return EXACT
        site, part, number = mismatch.place
        return self.rounding_of(mismatch.owner).get(ArrayKey(self.pairs[site], part, number), EXACT)

    def sent_from(self, places: Container[ArrayKey]) -> Isolated:
        """Run the pass in which gradients come back from these places only."""
        judged = jax_float64(self.tables)(saying(WHERE)(self.isolation.judged))
        return judged(self.isolation.sending(self.program, places), self.isolated.orders, dict.fromkeys(self.opened, True))

    def given(self, values: Mapping[ArrayKey, np.ndarray]) -> Isolated:
        """Run the pass with these arrays in place of torch's."""
        return jax_float64(self.tables)(saying(WHERE)(self.isolation.given))(self.isolated.orders, values)

    @cached_property
    def program(self) -> PatchedProgram:
        """Program in which the open boundaries may stay open."""
        if not self.opened:
            return self.isolation.program
        return jax_float64(self.tables)(self.isolation.compiled)(self.opened, gradients=True)

    def again(self, boundaries: Iterable[ArrayKey], *, gradients: bool) -> Callable[[Mapping[ArrayKey, bool]], Isolated]:
        """Return a pass in which jax's arrays stay at the boundaries that are True; it is compiled once."""
        compiled = jax_float64(self.tables)(self.isolation.compiled)(boundaries, gradients=gradients)
        judged = jax_float64(self.tables)(saying(WHERE)(self.isolation.judged))
        return lambda opened: judged(compiled, self.isolated.orders, opened)


def trace(reference: Reference, candidate: Candidate, *, local: bool, gradients: bool) -> Traced:
    """Run both sides; if JAX runs the model but cannot differentiate it, compare values only and keep the reason."""
    try:
        return traced_once(reference, candidate, local=local, gradients=gradients)
    except ParityError as error:
        if not gradients or error.__cause__ is None:
            raise
        try:
            traced = traced_once(reference, candidate, local=local, gradients=False)
        except ParityError:
            raise error from error.__cause__
        return replace(traced, no_gradients=error)


def traced_once(reference: Reference, candidate: Candidate, *, local: bool, gradients: bool) -> Traced:
    """Run the JAX model in float64: the normal run, then module by module on torch's arrays.

    If only the normal run is requested, the second is left out unless the first differs.
    """
    give_back_freed_memory()  # of torch's runs
    reference = without_absent(reference, candidate.family)
    model, call, tables = candidate.like, candidate.call, Tables(candidate.tables)

    def load() -> Any:
        with jax_float64(tables):
            return ready(loaded64(reference.weights, model, candidate.family), training=False)

    with jax_float64(tables), saying(WHERE):
        inputs = inputs_float64(reference.inputs)
        sent = dict(zip(reference.outputs, reference.calls[CALL].output_gradients, strict=True)) if gradients else None
        jax = propagate(load(), call, inputs, sent)
        stacks = numbered_stacks(site.path for site in jax.outputs)
        parameters = parameter_pairs(model, candidate.family, stacks)
        pairs, valid, reference = paired(jax, reference, parameters, candidate.statistics)
        orders = plain_orders(jax.outputs, reference.calls, pairs, valid)
        isolated = Isolated([], [], None, orders)
        give_back_freed_memory()  # of the normal run
        isolation = Isolation(load, call, inputs, reference.calls, pairs, valid, gradients, reference.outputs)
        traced = Traced(
            reference, model, candidate.family, jax, pairs, valid, isolated, isolation, tables, draws=candidate.draws
        )
        normal = (found for site in pairs if (found := traced.propagated(site)))
        if local or gradients or any(over(each, "activation") for each in normal):
            traced = replace(traced, isolated=isolation.run(orders))
            give_back_freed_memory()
            if over(traced.propagated(CALL) or EQUAL, "activation"):
                traced = replace(traced, isolated=in_usual_orders(traced.isolated, isolation))
    return traced


def paired(
    jax: NormalRun, reference: Reference, parameters: Mapping[str, str], statistics: Mapping[str, str]
) -> tuple[dict[Site, Site], dict[Site, np.ndarray], Reference]:
    """Pair jax's calls with torch's, including running `statistics`.

    Returns the pairs, the entries of attention scores and weights that are compared, and the reference without gradients of
    calls that both sides divide differently.
    """
    own, other = ({site.path for site in sites} for sites in (jax.outputs, reference.calls))
    modules = pair_modules(own, other, parameters)
    modules |= pair_without_parameters(jax.outputs, reference.calls, parameters, modules)
    modules |= pair_taps(jax.outputs, reference.calls, modules)
    calls, all_calls = (without_helpers(jax.outputs, reference.calls, modules, whole=whole) for whole in (False, True))
    pairs = pair_calls(calls, reference.calls, modules)
    both = {Site(mine, 0): Site(other, 0) for mine, other in statistics.items()}
    pairs |= {mine: other for mine, other in both.items() if mine in jax.outputs and other in reference.calls}
    left = {site: arrays for site, arrays in jax.outputs.items() if site not in pairs}
    attention = pair_attention(left, reference.calls, parameters)
    valid = {site: valid_entries(other, reference.calls, left[site][0]) for site, other in attention.items()}
    torch = as_long_as_jaxs(without_uneven_gradients(reference.calls, all_calls, pairs), jax.outputs, pairs)
    reference = replace(reference, calls=torch)
    return {**pairs, **attention, CALL: CALL}, valid, reference
