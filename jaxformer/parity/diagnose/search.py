"""The search: torch's code with one mutation, the plain ones first, until it gives jax's array."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.constants import say
from jaxformer.parity.diagnose.cross_check import cross_check
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.mutation import ByRow, Proposal
from jaxformer.parity.diagnose.operators import operations, parameters
from jaxformer.parity.diagnose.operators.losses import is_certain
from jaxformer.parity.diagnose.registry import every, kinds
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import off, solved
from jaxformer.parity.diagnose.trace import LITTLE, Rewrite
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.runs.session import Budget
from jaxformer.parity.trace.call_sites import ArrayKey

FLOAT32, LARGE = 3e-7, 1e4
"""A residual of float32's rounding, as tables have that jax's code computes; and how many times larger the difference is."""
CLEAR = 100
"""How many times smaller than the difference a residual is, at least."""
ORDINARY = 30
"""So many times torch's number one may be that stands where torch's code reads None."""


@dataclass
class Search:
    """For what gives jax's array in one of torch's calls."""

    replay: Replay
    torch: np.ndarray
    jax: np.ndarray
    budget: Budget
    nearly: str = ""
    """What gave the array, and contradicts another one."""
    limit: float = field(init=False)
    """The largest residual of a cause."""

    def __post_init__(self) -> None:
        self.limit = limit_of(self.torch, self.jax)

    @property
    def is_possible(self) -> bool:
        """Whether there is an array to be searched for, and torch gives its own again."""
        return bool(np.isfinite(self.jax).any()) and self.replay.begins

    def diagnosis(self) -> Diagnosis:
        """What explained another difference, or else what is found first."""
        if found := self.as_before():
            return found
        return self._told(self._first_found() if self.is_possible else [])

    def as_before(self) -> Diagnosis:
        """A mutation that explained another difference, if it explains this one."""
        known = self.budget.session.confirmed
        return self._told(self._first_known(known) if known and self.is_possible else [])

    def by(self, candidate: Candidate) -> Diagnosis:
        """This mutation, if it explains this difference too."""
        mutation = candidate.mutation
        known = {mutation.key: mutation.value or 0.0}
        return Diagnosis(tuple(self._first_known(known) if self.is_possible else ()))

    def _told(self, best: list[Candidate]) -> Diagnosis:
        """What was found is tried first from now on."""
        for candidate in best[:1]:
            mutation = candidate.mutation
            self.budget.session.confirmed[mutation.key] = mutation.value or 0.0
        return Diagnosis(tuple(best), tried=self.budget.tried, spent=self.budget.is_spent, nearly=self.nearly)

    def _first_known(self, known: Mapping[Any, float]) -> list[Candidate]:
        for proposal in every(self.replay, self.budget.session):
            if (value := known.get(proposal.mutation)) is not None:
                fixed = proposal.at(value)
                if (residual := off(self.array(fixed), self.jax)) <= self.limit:
                    others = cross_check(self.replay, fixed, self.limit)
                    if not others.contradicts:
                        return [self._candidate(proposal, fixed, residual, others.gives)]
        return []

    def _first_found(self) -> list[Candidate]:
        """Those of the first kind of which one fits: what gives most of jax's arrays, the plainest first."""
        found: list[Candidate] = []
        for kind, most in kinds(self.replay, self.budget.session, self.budget.left / self.replay.cost):
            for proposal in kind:
                if self.budget.is_spent or sum(each.certainty == "exact" for each in found) >= most:
                    break
                self.budget.tried += 1
                if candidate := self._tried(proposal, found):
                    found.append(candidate)
            if self.budget.is_spent or not all(map(self._may_be_another, found)):
                break
        return best_of([*found, *self._rivals(found)])

    def _may_be_another(self, found: Candidate) -> bool:
        """Whether other whole numbers of a module give as much, so that the cause may be of another kind; but for arrays of
        whole numbers, which every kind gives too easily."""
        return found.mutation.change == parameters.SETTING and is_vague(found) and bool((self.jax != self.jax.round()).any())

    def _rivals(self, found: list[Candidate]) -> list[Candidate]:
        """Operations of the code that are left out, where the same tensors read otherwise give as much."""
        if not any(each.mutation.change == parameters.READ for each in found):
            return []
        return [each for proposal in operations.rivals(self.replay) if (each := self._tried(proposal, found))]

    def _tried(self, proposal: Proposal, found: list[Candidate]) -> Candidate | None:
        if proposal.by_row and not (proposal := self._chosen(proposal, proposal.by_row)):
            return None
        if not (fits := self._fitted(proposal)) or not is_certain(self.replay, fits[0], solved=proposal.free is not None):
            return None
        fixed, residual = fits
        others = cross_check(self.replay, fixed, self.limit)
        if others.contradicts:
            self.nearly = self.nearly or str(fixed.mutation)
            return None
        exact = [each for each in found if each.certainty == "exact"]
        if any(proposal.mutation.place == each.mutation.place for each in exact):
            return None  # of a place of which one is known
        return self._candidate(proposal, fixed, residual, others.gives)

    def _candidate(self, proposal: Proposal, fixed: Proposal, residual: float, gives: frozenset[ArrayKey]) -> Candidate:
        certainty = "exact" if residual <= EXPLAINED else "float32"
        beside = itertools.chain(self._beside(proposal), nudged(fixed))
        if any(off(self.array(each), self.jax) <= self.limit for each in beside):
            certainty = "ambiguous"  # as of a window beyond the text, or of what is rounded to whole numbers
        return Candidate(fixed.mutation, residual, certainty, self.replay.owner, gives)

    def _beside(self, proposal: Proposal) -> Iterator[Proposal]:
        """The same with other whole numbers."""
        if proposal.free is not None:
            return
        for edit in proposal.near:
            yield replace(proposal, edits=edit)
        if proposal.mutation.change == parameters.SETTING:
            those = parameters.proposals(self.replay)
            own = proposal.mutation
            alike = (each for each in those if each.mutation.place == own.place and each.mutation != own)
            yield from (each for each in alike if not each.free)

    def _chosen(self, proposal: Proposal, by_row: ByRow) -> Proposal | None:
        """With a way for each row of jax's array; None where a row is given by none."""
        arrays = [self.array(replace(proposal, edits=way)) for way in by_row.ways]
        alike = [(i, array) for i, array in enumerate(arrays) if array is not None and array.shape == self.jax.shape]
        fits = [[i for i, array in alike if off(array[n], row) <= self.limit] for n, row in enumerate(self.jax)]
        if not all(fits):
            return None
        first, last = (by_row.chosen(tuple(ways[at] for ways in fits)) for at in (0, -1))
        return first if first.mutation == last.mutation else replace(first, near=(last.edits,))

    def _fitted(self, proposal: Proposal) -> tuple[Proposal, float] | None:
        """The proposal with its number, if it gives jax's array; and how far it is off."""
        free = proposal.free
        if free is None:
            residual = off(self.array(proposal), self.jax)
            return (proposal, residual) if residual <= self.limit else None
        if not np.isfinite(self.jax).all():
            return None  # a number cannot be solved for
        without = off(self.array(proposal.at(math.inf)), self.jax) if free.absent else math.inf
        found = solved(lambda x: self.array(proposal.at(x)), free, self.torch, self.jax, self.limit)
        if without <= self.limit and not (found and is_ordinary(found[0], free.start)):
            found = math.inf, without
        return (proposal.at(found[0]), found[1]) if found and found[1] <= self.limit else None

    def array(self, proposal: Proposal) -> np.ndarray | None:
        """torch's, so mutated; None where that cannot be, or where time is up."""
        if self.budget.is_late:
            return None
        self.budget.spend(self.replay.cost)
        try:
            return self.replay.array(proposal.edit())
        except Exception:  # a model refuses in its own ways
            return None


def is_vague(candidate: Candidate) -> bool:
    """Whether others give as much."""
    return candidate.certainty == "ambiguous"


def limit_of(torch: np.ndarray, jax: np.ndarray) -> float:
    """The largest residual of a cause: where the difference is large, what jax's code rounds to float32 may stay; where it is
    tiny, a cause is well below it."""
    apart = off(jax, torch)
    return FLOAT32 if np.inf > apart >= LARGE * FLOAT32 else min(EXPLAINED, apart / CLEAR)


def best_of(found: list[Candidate]) -> list[Candidate]:
    """Of exact ones those that give most, the plainest first; one alone where another number gives as much, beside the whole
    number of a module that gives as much too, or where float32's rounding is in between."""
    exact = [each for each in found if each.certainty == "exact"]
    vague = [*filter(is_vague, found)]
    best = sorted(exact, key=lambda each: (-len(each.explains), *supposed(each)))
    if best and vague:
        settings = [each for each in vague[:1] if each.mutation.change == parameters.SETTING]
        best = [*settings, replace(best[0], certainty="ambiguous")]
    best = best or vague[:1] or found[:1]
    return [each for each in best if each.explains == best[0].explains]


def supposed(candidate: Candidate) -> tuple[int, int]:
    """How much a cause supposes: what leaves something out the least, and then numbers of few digits; nobody does a thing
    twice where another number is as much."""
    name = say(candidate.mutation.value or 0.0).rpartition(" = ")[2]
    return candidate.mutation.change.cost, sum(letter.isdigit() for letter in name)


def nudged(proposal: Proposal) -> Iterator[Proposal]:
    """The same with a little more or less of what it computes: where that gives as much, it is rounded to whole numbers, or
    something is chosen by it."""
    if isinstance(inside := proposal.edit(), Rewrite):
        for part in (LITTLE, -LITTLE):
            yield Proposal(proposal.mutation, partial(inside.nudged, part))


def is_ordinary(number: float, torchs: float) -> bool:
    """Whether it may be meant, beside torch's number: a cap that nothing reaches is none."""
    return torchs != 0 and 1 / ORDINARY <= abs(number / torchs) <= ORDINARY
