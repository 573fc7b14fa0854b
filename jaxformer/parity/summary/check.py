"""Comparison of a JAX model, with its own weights, with the statistics of a reference."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from jaxformer.convert.rules import Family, in_torchs_layout
from jaxformer.errors import ParityError, listed
from jaxformer.parity.attribute.comparison import Result, environment
from jaxformer.parity.attribute.values_and_gradients import NOTHING_FINITE
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.metrics import DIFFERENT, EQUAL, Error, over
from jaxformer.parity.numerics.statistics import Statistics, statistics_of
from jaxformer.parity.pairing.buffers import typed_constants
from jaxformer.parity.pairing.modules import numbered_stacks, pair_calls, pair_modules, parameter_pairs
from jaxformer.parity.report.data import Module, Stage
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.jax_reference import by_layer, layers_of
from jaxformer.parity.summary.events import Event, Summarizing, counted
from jaxformer.parity.summary.summary import Summary, run_jax
from jaxformer.parity.trace.call_sites import CALL, Site, ancestors
from jaxformer.parity.trace.not_finite import first_not_finite
from jaxformer.parity.trace.outputs import Call
from jaxformer.parity.trace.reference import saying
from jaxformer.parity.trace.selection import ALL
from jaxformer.pytree import named_weights

NEAR = 0.5
"""relL2 up to which a tensor of other numbers is taken for the partner of one without another."""


@dataclass(frozen=True)
class ByStatistics:
    """A JAX model beside the statistics of a reference."""

    summary: Summary
    model: Any
    rules: Family | None
    call: Call

    @cached_property
    def run(self) -> Summarizing:
        """The JAX model's run."""
        with saying("jax in float64"):
            return run_jax(self.model, self.summary.inputs, self.call, ALL, Tables(self.summary.buffers), "call_jax")

    @cached_property
    def weights(self) -> dict[str, Statistics]:
        """Statistics of the JAX model's weights: by torch's names if there are rules, else by their own, layer by layer."""
        if self.rules is not None:
            arrays: Mapping[str, np.ndarray] = in_torchs_layout(self.model, self.rules)
        else:
            arrays = by_layer(named_weights(self.model), layers_of(self.run.paths), np.float32)
        return {name: statistics_of(array) for name, array in arrays.items()}

    @cached_property
    def partners(self) -> dict[str, str]:
        """JAX's names of weights -> the reference's: tensors of numbers that no other tensor of the reference has, joined
        ones, then the nearest ones."""
        if self.rules is not None:
            return {name: name for name in self.weights if name in self.summary.weights}
        torch, jax = (_by_checksum(weights) for weights in (self.summary.weights, self.weights))
        pairs = {name: names[0] for key, names in torch.items() if len(names) == 1 for name in jax.get(key, ())}
        joined, taken_apart = self.joined
        pairs |= {f"{whole}[{i}]": part for whole, parts in joined.items() for i, part in enumerate(parts)}
        pairs |= {part: whole for whole, parts in taken_apart.items() for part in parts}
        lost = [name for name in _alone(self.summary.weights, self.weights) if name not in taken_apart]
        for name in (name for name in _alone(self.weights, self.summary.weights) if name not in {*pairs, *joined}):
            apart = {other: self.apart(name, other) for other in lost if other not in pairs.values()}
            if apart and apart[nearest := min(apart, key=apart.__getitem__)] <= NEAR:
                pairs[name] = nearest
        return pairs

    @cached_property
    def joined(self) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """Tensors of JAX's -> the reference's that each holds together, and tensors of the reference's -> JAX's."""
        jax, torch = self.weights, self.summary.weights
        new, lost = _alone(jax, torch), _alone(torch, jax)
        return unions(jax, new, torch, lost), unions(torch, lost, jax, new)

    def apart(self, name: str, other: str) -> float:
        """relL2 between a weight of JAX's and one of the reference's."""
        jax, torch = self.weights[name], self.summary.weights[other]
        return torch.apart(jax).relative if torch.fits(jax) else np.inf

    @cached_property
    def output(self) -> Error:
        """Error of the output of the whole call."""
        return self._apart(self.run.events[-1], self.summary.events[-1])

    @cached_property
    def pairs(self) -> dict[Site, Site]:
        """JAX's calls -> the reference's; where the outputs differ, modules and taps without a pair that have one path too."""
        parameters = self.partners
        if self.rules is not None:
            parameters = parameter_pairs(self.model, self.rules, numbered_stacks(self.run.paths))
        paths = {site.path for site in self.summary.calls}
        modules = pair_modules(self.run.paths, paths, parameters)
        if over(self.output, "activation"):
            modules |= {path: path for path in self.run.paths & paths if path not in {*modules, *modules.values()}}
        jax = [event.site for event in self.run.events if event.part == "output"]
        return {**pair_calls(jax, self.summary.calls, modules), CALL: CALL}

    @cached_property
    def differences(self) -> dict[Event, Error]:
        """Error of each event of JAX's that has a partner, in the order of JAX's run."""
        torch = {(event.site, event.part): event for event in self.summary.events}
        both = {event: torch.get((self.pairs[event.site], event.part)) for event in self.run.events if event.site in self.pairs}
        return {event: self._apart(event, other) for event, other in both.items() if other is not None}

    def _apart(self, event: Event, other: Event) -> Error:
        """Largest error of the arrays of an event; arrays are paired in order, by their shapes."""
        found, left = [EQUAL], [*enumerate(other.arrays)]
        for array in event.arrays:
            fits = next((pair for pair in left if pair[1].fits(array)), None)
            if fits is not None:
                left.remove(fits)
                error, key = fits[1].apart(array), (other.site, event.part, fits[0])
                noise = self.summary.rounding.get(key, 0.0)
                found.append(replace(error, rounding=noise, rounding_peak=noise * np.sqrt(np.prod(array.shape))))
            elif event.site == CALL:
                found.append(DIFFERENT)
        return max(found, key=lambda error: error.off("activation"))

    @cached_property
    def first(self) -> Event | None:
        """First event that differs: everything before it is equal, so that its maker's own code is responsible."""
        return next((event for event, off in self.differences.items() if over(off, "activation")), None)

    @cached_property
    def maker(self) -> Site | None:
        """Innermost paired call around the code that makes the first difference."""
        if self.first is None or self.first.maker in self.pairs:
            return self.first and self.first.maker
        around = {site.path: site for site in self.pairs}
        return next((around[path] for path in ancestors(self.first.maker.path) if path in around), CALL)

    @property
    def modules(self) -> list[Module]:
        """Table of the calls with a partner; the maker of the first difference diverges."""
        rows = {event.site: off for event, off in self.differences.items() if event.part == "output"}
        maker, local = self.maker, self.differences[self.first] if self.first else EQUAL
        rows |= {maker: local} if maker and maker not in rows else {}
        what = "output" if self.first is None or self.first.part == "output" else f"input of {self.first.site}"
        own = {site: (local, what, True) if site == maker else (EQUAL, "output", False) for site in rows}
        names = {site: str(site) if site.path or site.call else "" for site in rows}
        return [Module(names[site], str(self.pairs[site]), off, *own[site]) for site, off in rows.items()]


def _by_checksum(weights: Mapping[str, Statistics]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, each in weights.items():
        found[each.checksum].append(name)
    return found


def _alone(weights: Mapping[str, Statistics], others: Mapping[str, Statistics]) -> list[str]:
    """Return the names of tensors of numbers that no tensor of the others has."""
    held = {each.checksum for each in others.values()}
    return [name for name, each in weights.items() if each.checksum not in held]


def unions(
    wholes: Mapping[str, Statistics], of: Sequence[str], parts: Mapping[str, Statistics], among: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return tensors `of` one side that hold the numbers of several tensors `among` the other's, which follow each other among
    those with as many axes or with one axis less."""
    found: dict[str, tuple[str, ...]] = {}
    for rank in {len(parts[name].shape) for name in among}:
        row = [name for name in among if len(parts[name].shape) == rank]
        sums = [(0, 0), *accumulate((parts[name].digest for name in row), _added)]
        for name in (name for name in of if len(wholes[name].shape) in (rank, rank + 1)):
            ends = {_added(start, wholes[name].digest): i for i, start in enumerate(sums)}
            if span := next(((ends[end], j) for j, end in enumerate(sums) if ends.get(end, j) < j - 1), None):
                found[name] = tuple(row[slice(*span)])
    return found


def _added(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((a + b) % 2**64 for a, b in zip(one, two, strict=True))


def results(compared: ByStatistics) -> Iterator[Result]:
    """Yield the results of both checks: of the weights, and of the values in the normal run.

    Raises ParityError if the reference's output is NaN or infinite throughout.
    """
    if all(each.not_finite == math.prod(each.shape) for each in compared.summary.output.values()):
        place = first_not_finite(counted(compared.summary.events))
        raise ParityError(NOTHING_FINITE + f"; the first output that is not finite is {place}" * bool(place))
    forward = _forward(compared)
    yield Result(_weights(compared))
    more = {"modules": compared.modules, "environment": environment() | dict(compared.summary.environment)}
    not_covered = ["gradients, and each module alone: the reference holds statistics"]
    not_covered += [f"modules: {compared.summary.left_out}"] if compared.summary.left_out else []
    yield Result(forward, inconclusive=not_covered, more=more)


def _forward(compared: ByStatistics) -> Stage:
    output = compared.output
    first, judged = compared.first, f"{len(compared.differences):,} groups of arrays"
    wrong = [f"{side}'s first output that is not finite is that of {at}" for side, at in _not_finite(compared) if at]
    if first is None:
        return Stage("forward", "equal", "; ".join((f"relL2 {output.relative:.1e} by statistics of {judged}", *wrong)))
    off, maker = compared.differences[first], compared.maker
    what = "its output" if first.part == "output" else f"what it gives to {first.site}"
    says = f"output relL2 {output.relative:.1e}; first in {maker}: {what} is off by relL2 {off.relative:.1e}"
    return Stage("forward", "different", "; ".join((says, *wrong)))


def _not_finite(compared: ByStatistics) -> Sequence[tuple[str, str]]:
    sides = ("torch", compared.summary.events), ("jax", compared.run.events)
    return [(side, first_not_finite(counted(events))) for side, events in sides]


def _weights(compared: ByStatistics) -> Stage:
    """Judge the weights: each has a partner with the same numbers, in any order of axes."""
    torch, jax = compared.summary.weights, compared.weights
    held = {each.checksum for each in (*torch.values(), *map(statistics_of, compared.summary.buffers.values()))}
    constants = typed_constants(compared.model)
    wrong = [name for name, each in jax.items() if each.checksum not in held and name not in constants]
    lost = _alone(torch, jax)
    if not wrong and not lost:
        return Stage("weights", "equal", f"{count(len(torch), 'tensor')} with the same numbers, in any order of axes")
    held_in = {name for each in compared.joined for whole, parts in each.items() for name in (whole, *parts)}
    wrong, lost = ([name for name in names if name not in held_in] for names in (wrong, lost))
    if not wrong and not lost:
        return Stage("weights", "equal", f"{count(len(torch), 'tensor')} with the same numbers, some of them joined")
    pairs = [(name, compared.partners[name]) for name in wrong if name in compared.partners]
    says = [f"{name} is off by relL2 {compared.apart(name, other):.1e} from {other}" for name, other in pairs]
    says += [f"{name} has no partner" for name in (*wrong, *lost) if name not in {it for pair in pairs for it in pair}]
    counted = f"{count(len(wrong), 'tensor')} of JAX's and {len(lost)} of torch's"
    return Stage("weights", "different", f"{counted}: {listed(says, '; ')}")
