"""Search for the cause: replay torch's code with one mutation after another, plain ones first, until it gives jax's array."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from jaxformer.parity.diagnose.cross_check import cross_check
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.loss_gradients import is_certain
from jaxformer.parity.diagnose.mutation import REPEATS, Mutation, Proposal, grouped
from jaxformer.parity.diagnose.operators import arguments, means, operations, parameters
from jaxformer.parity.diagnose.operators import scales as scaling
from jaxformer.parity.diagnose.registry import every, kinds
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import off, solved
from jaxformer.parity.diagnose.trace import LITTLE, Rewrite
from jaxformer.parity.diagnose.two_at_once import FIRST, Effects, Pair, candidates_of, fitted, larger
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.runs.session import Budget
from jaxformer.parity.trace.call_sites import ArrayKey

FLOAT32, LARGE = 3e-7, 1e4
"""Tolerance (relL2) of float32 rounding, as in tables that jax's code computes; and the least ratio of the difference to it."""
CLEAR = 100
"""Least ratio of the difference to a candidate's residual."""
ROUNDED = 8
"""Largest ratio of a residual that is float32's rounding to the effect of such rounding."""
MOST_PLACES = 6
"""Largest number of places of one mutation of which all combinations are tried."""
ORDINARY = 30
"""Largest ratio, either way, of a solved number to torch's at which it is preferred to None, where both fit."""


@dataclass
class Search:
    """Search for mutations that give jax's array in one of torch's calls."""

    replay: Replay
    torch: np.ndarray
    jax: np.ndarray
    budget: Budget
    nearly: str = ""
    """Words for the first mutation that gave the array but failed the cross-check."""
    limit: float = field(init=False)
    """Largest residual of a candidate."""
    effects: Effects = field(init=False)
    kind: int = 0
    """Number of the kind that is tried."""
    rivals: ClassVar[int] = 0
    """Least number of exact candidates after which a kind of mutations ends."""

    def __post_init__(self) -> None:
        self.limit, self.replay.ends = limit_of(self.torch, self.jax), self.budget.ends
        self.effects = Effects(self.torch, self.jax)

    @property
    def is_possible(self) -> bool:
        """True if jax's array has finite entries, and a replay gives torch's array again."""
        return bool(np.isfinite(self.jax).any()) and self.replay.begins

    def diagnosis(self) -> Diagnosis:
        """Return a mutation that explained another difference if it explains this one, or else search."""
        if found := self.as_before():
            return found
        return self._told(self._first_found() if self.is_possible else [])

    def as_before(self) -> Diagnosis:
        """Return a mutation that explained another difference of the session, or two of them together, if they explain this
        one, in the same layer or in another."""
        known, pairs = self.budget.session.confirmed, self.budget.session.pairs
        single = self._told(self._first_known(known) if known and self.is_possible else [])
        return single or next(filter(None, map(self._two_known, pairs if self.is_possible else [])), single)

    def _two_known(self, known: tuple[Mutation, Mutation]) -> Diagnosis:
        """Return two mutations that explained another difference, if they explain this one."""
        values = {each.in_any_layer: each.value or 0.0 for each in known}
        alike = {each.mutation.in_any_layer: each for each in every(self.replay, self.budget.session)}
        if len(values) < len(known) or not values.keys() <= alike.keys():
            return Diagnosis()
        one, other = (alike[each].at(value) for each, value in values.items())
        both, limit = (pair := Pair(one, other)).together(), min(self.limit, EXPLAINED)
        if not (residual := off(self.array(both), self.jax)) <= limit or cross_check(self.replay, both, limit).contradicts:
            return Diagnosis()
        return self._both_told(pair, residual, [])

    def of_two(self) -> Diagnosis:
        """Return two mutations that give jax's array together, for a search in vain."""
        found: list[tuple[Pair, float]] = []
        leaders = self.effects.leaders(self.array) if self.is_possible else []
        some = (
            Pair(each, other)
            for each, *_ in leaders[:FIRST]
            for other in arguments.in_some(self.replay, each.edit, larger(each).edit)
        )
        for several in (self.effects.pairs(leaders), some):
            for pair in several if not found else ():
                fits = None if self.budget.is_late else fitted(pair, self.array, self.jax, min(self.limit, EXPLAINED))
                if fits and not cross_check(self.replay, pair.at(*fits[0]), self.limit).contradicts:
                    found.append((pair.fixed(*fits[0]), fits[1]))
        if not found:
            return self._told([])
        best, residual = min(found, key=lambda each: each[0].plainness)
        self.budget.session.pairs.append((best.one.mutation, best.other.mutation))
        return self._both_told(best, residual, [pair for pair, _ in found])

    def _both_told(self, pair: Pair, residual: float, others: list[Pair]) -> Diagnosis:
        """Build the diagnosis of two mutations; `others` fit too."""
        return replace(self._told(candidates_of(pair, residual, others, self.replay.owner)), together=True)

    def by(self, candidate: Candidate) -> Diagnosis:
        """Return the candidate of another difference, if its mutation explains this one too."""
        mutation = candidate.mutation
        known = {mutation.key: mutation.value or 0.0}
        return Diagnosis(tuple(self._first_known(known) if self.is_possible else ()))

    def _told(self, best: list[Candidate]) -> Diagnosis:
        """Build the diagnosis, and note the best candidate in the session, so that it is tried first from now on."""
        for candidate in best[:1]:
            mutation = candidate.mutation
            self.budget.session.confirmed[mutation.key] = mutation.value or 0.0
        return Diagnosis(tuple(best), tried=self.budget.tried, spent=self.budget.is_spent, nearly=self.nearly)

    def _first_known(self, known: Mapping[Any, float]) -> list[Candidate]:
        alike = {mutation.in_any_layer: value for mutation, value in known.items()}
        for proposal in every(self.replay, self.budget.session):
            if (value := alike.get(proposal.mutation.in_any_layer)) is not None:
                fixed = proposal.at(value)
                if self._is_rounding(fixed, residual := off(self.array(fixed), self.jax)):
                    others = cross_check(self.replay, fixed, self._limit(fixed))
                    if not others.contradicts:
                        return [self._candidate(proposal, fixed, residual, others.gives)]
        return []

    def _first_found(self) -> list[Candidate]:
        """Search kind by kind; the first kind with a candidate ends the search. The best candidates are returned."""
        found: list[Candidate] = []
        every = kinds(self.replay, self.budget.session, self.budget.left / self.replay.cost)
        for number, (kind, most) in enumerate(every):
            self.kind = number
            for proposal in kind:
                if self.budget.is_spent or sum(each.certainty == "exact" for each in found) >= max(most, self.rivals):
                    break
                self.budget.tried += 1
                if candidate := self._tried(proposal, found):
                    found.append(self._of_fewest(proposal, found) or candidate)
            if self.budget.is_spent or not all(map(self._may_be_another, found)):
                break
        return best_of([*found, *self._rivals(found)])

    def _of_fewest(self, proposal: Proposal, found: list[Candidate]) -> Candidate | None:
        """Return the candidate of as few of a proposal's places as suffice; None if all of them are needed."""
        sizes = range(1, len(proposal.parts) if len(proposal.parts) <= MOST_PLACES else 2)
        fewer = (some for size in sizes for some in itertools.combinations(proposal.parts, size))
        return next(filter(None, (self._tried(proposal.merge(some), found) for some in fewer)), None)

    def _may_be_another(self, found: Candidate) -> bool:
        """True if a candidate is a module's integer setting of which another value fits too: the cause may be of another kind.

        False for arrays of integers, which every kind gives too easily.
        """
        return found.mutation.change == parameters.SETTING and found.is_vague and bool((self.jax != self.jax.round()).any())

    def _rivals(self, found: list[Candidate]) -> list[Candidate]:
        """Candidates that leave out an operation, tried where a candidate reads the same tensors in another way; with another
        number, where one adds an operation or amounts to a factor; and with another epsilon, where one multiplies a result: the
        input of a norm."""
        changes = {each.mutation.change for each in found}
        read, repeats = parameters.READ in changes, any(each.cost == REPEATS for each in changes)
        scales, factors = scaling.MULTIPLE in changes, any(means.is_factor(each.mutation) for each in found)
        every = self.replay.operations if read or repeats or scales or factors else []
        left_out = (
            each for op in every for each in operations.omissions(op) if read and each.mutation.change == operations.LEFT_OUT
        )
        numbers = (each for op in every for each in arguments.proposals(op) if (repeats or factors) and each.free)
        runs = (replace(op, only=only) for op in every for only in ([None] if len(op.runs) == 1 else range(len(op.runs))))
        epsilons = (each for op in runs for each in arguments.epsilons(op) if scales)
        return [each for proposal in (*left_out, *numbers, *epsilons) if (each := self._tried(proposal, found))]

    def _tried(self, proposal: Proposal, found: list[Candidate]) -> Candidate | None:
        if not (fits := self._fitted(proposal)) or not self._is_certain(fits[0], solved=proposal.free is not None):
            return None
        fixed, residual = fits
        others = cross_check(self.replay, fixed, self._limit(proposal))
        if others.contradicts:
            self.nearly = self.nearly or str(fixed.mutation)
            return None
        exact = [each for each in found if each.certainty == "exact" and each.mutation.place == proposal.mutation.place]
        if any(each.mutation.change.cost <= proposal.mutation.change.cost for each in exact):
            return None  # another exact candidate, as plain, has this place
        return self._candidate(proposal, fixed, residual, others.gives)

    def _candidate(self, proposal: Proposal, fixed: Proposal, residual: float, gives: frozenset[ArrayKey]) -> Candidate:
        certainty = "exact" if residual <= EXPLAINED else "float32"
        beside = itertools.chain(self._beside(proposal), nudged(fixed))
        if any(off(self.array(each), self.jax) <= self.limit for each in beside):
            certainty = "ambiguous"  # e.g. a window longer than the text, or a value that is rounded to integers
        return Candidate(fixed.mutation, residual, certainty, self.replay.owner, gives)

    def _beside(self, proposal: Proposal) -> Iterator[Proposal]:
        """Yield the same mutation with neighbouring numbers, or other values of the same setting."""
        if proposal.free is not None:
            return
        for edit in proposal.near:
            yield replace(proposal, edits=edit)
        if proposal.mutation.change == parameters.SETTING:
            those = parameters.proposals(self.replay)
            own = proposal.mutation
            alike = (each for each in those if each.mutation.place == own.place and each.mutation != own)
            yield from (each for each in alike if not each.free)

    def _fitted(self, proposal: Proposal) -> tuple[Proposal, float] | None:
        """Solve for the free parameter, if any; return the proposal with its number and its residual, or None if it does not
        give jax's array."""
        free, limit = proposal.free, self._limit(proposal)
        if free is None:
            residual = off(self.array(proposal), self.jax)
            return (proposal, residual) if self._is_rounding(proposal, residual) else None
        if not np.isfinite(self.jax).all():
            return None  # least squares need finite entries
        without = off(self.array(proposal.at(math.inf)), self.jax) if free.absent else math.inf
        accepts = (lambda x: self._is_certain(proposal.at(x), solved=True)) if self.jax.size <= 1 else None
        found = solved(lambda x: self.array(proposal.at(x)), free, self.torch, self.jax, limit, accepts)
        if without <= self.limit and not (found and is_ordinary(found[0], free.start)):
            found = math.inf, without
        return (fixed, found[1]) if found and self._is_rounding(fixed := proposal.at(found[0]), found[1]) else None

    def _is_certain(self, fixed: Proposal, *, solved: bool) -> bool:
        return is_certain(self.replay, fixed, solved=solved)

    def _limit(self, proposal: Proposal) -> float:
        """Return the largest residual of a proposal; more than of others where jax's code may hold arrays of it in float32."""
        return max(self.limit, off(self.jax, self.torch) / LARGE) if proposal.pushed else self.limit

    def _is_rounding(self, proposal: Proposal, residual: float) -> bool:
        """True if a residual is rounding: float32's, by its effect, in arrays that jax's code may hold in float32."""
        if residual <= self.limit or not proposal.pushed or not residual <= self._limit(proposal):
            return residual <= self.limit
        array, pushed = self.array(proposal), self.array(replace(proposal, edits=proposal.pushed))
        return array is not None and residual <= ROUNDED * off(pushed, array) < math.inf

    def array(self, proposal: Proposal) -> np.ndarray | None:
        """Replay torch's code with a mutation, and return the array; None if that fails, or if the time is up."""
        if self.budget.is_late:
            return None
        self.budget.spend(self.replay.cost)
        try:
            array = self._run(proposal)
        except Exception:  # any error of the model's code
            return None
        self.effects.note(proposal, array, self.kind)
        return array

    def _run(self, proposal: Proposal) -> np.ndarray | None:
        return self.replay.array(proposal.edit())


def limit_of(torch: np.ndarray, jax: np.ndarray) -> float:
    """Return the largest residual of a candidate.

    For a large difference it allows float32 rounding in jax's code; for a tiny one it has to be well below the difference.
    """
    apart = off(jax, torch)
    return FLOAT32 if np.inf > apart >= LARGE * FLOAT32 else min(EXPLAINED, apart / CLEAR)


def best_of(found: list[Candidate]) -> list[Candidate]:
    """Select the candidates that are reported.

    These are the exact ones that explain the most arrays, the plainest first. If ambiguous ones fit too, the plainest exact one
    becomes ambiguous, and stands beside an ambiguous setting of a module. Without exact ones, one candidate is left.
    """
    exact = [each for each in found if each.certainty == "exact"]
    vague = [each for each in found if each.is_vague]
    best = sorted(exact, key=lambda each: (-len(each.explains), *each.plainness))
    best = [those[0] for those in grouped(best, lambda each: each.mutation.place).values()]
    if best and vague:
        settings = [each for each in vague[:1] if each.mutation.change == parameters.SETTING]
        best = [*settings, replace(best[0], certainty="ambiguous")]
    best = best or vague[:1] or found[:1]
    return [each for each in best if each.explains == best[0].explains]


def nudged(proposal: Proposal) -> Iterator[Proposal]:
    """Yield the mutation with its computed values pushed a little up and down.

    If one of these gives jax's array too, the value is rounded to integers, or only selects something.
    """
    if isinstance(inside := proposal.edit(), Rewrite):
        for part in (LITTLE, -LITTLE):
            yield Proposal(proposal.mutation, partial(inside.nudged, part))


def is_ordinary(number: float, torchs: float) -> bool:
    """True if a solved number is near enough to torch's to be meant as one: a cap that nothing reaches is no cap."""
    return torchs != 0 and 1 / ORDINARY <= abs(number / torchs) <= ORDINARY
