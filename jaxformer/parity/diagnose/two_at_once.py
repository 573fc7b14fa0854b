"""Two mutations at once: the cause where one stretch of code differs from torch's in two ways.

The search notes the effect of each mutation on torch's array. Small effects add up, so only those pairs are run whose effects
add up nearest to jax's difference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Candidate
from jaxformer.parity.diagnose.mutation import Free, Mutation, Proposal
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.diagnose.solve import NEARLY, gauss_newton, off, rounded, solved
from jaxformer.parity.diagnose.trace import both
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.trace.call_sites import Site

FEWEST, SAMPLE = 32, 512
"""Least number of entries of an array of which two mutations are told; number of entries on which effects are compared."""
LEADERS, MOST_PAIRS = 200, 24
"""Number of leaders, mutations with the nearest effects, that are paired with all others; number of pairs that are run."""
FIRST = 4
"""Number of leaders whose number is solved for, and beside which one number is tried in some of several places."""
NEAR = 0.5
"""Largest share of what one effect leaves of the difference that the second one may leave."""
DISTINCT = 1e-6
"""Least share of an effect that another one must not give, in squares, for both to count."""
CLOSE = 1e-4
"""Largest relative change of a solved number by rounding."""
Run = Callable[[Proposal], np.ndarray | None]
"""run(proposal) -> the array with its mutation; None if that fails."""


class Effect(NamedTuple):
    """Effect of a mutation on a sample of the entries of torch's array."""

    proposal: Proposal
    """Mutation, with the number that was tried if it has a free parameter."""
    size: np.ndarray
    kind: int
    """Number of its kind among those of the search, the plain ones first."""


class Pair(NamedTuple):
    """Two mutations that may give jax's array together."""

    one: Proposal
    other: Proposal
    kind: int = 0
    """Sum of the numbers of their kinds."""

    @property
    def both(self) -> tuple[Proposal, Proposal]:
        """Both mutations."""
        return self.one, self.other

    @property
    def plainness(self) -> tuple[int, int, int]:
        """Sort key, plain pairs first: by kinds, then by the costs of the changes, then by the digits of the numbers."""
        mutations = [each.mutation for each in self.both]
        digits = (
            say(each.value).partition(" ")[0].replace(".", "").strip("-0") for each in mutations if each.value is not None
        )
        return self.kind, sum(each.change.cost for each in mutations), sum(map(len, digits))

    def fixed(self, *numbers: float) -> "Pair":
        """Return the pair with numbers for their free parameters."""
        left = iter(numbers)
        one, other = (each.at(next(left)) if each.free else each for each in self.both)
        return Pair(one, other, self.kind)

    def together(self) -> Proposal:
        """Return one proposal of both, whose numbers are known."""
        return Proposal(self.one.mutation, lambda: both(*(each.edit() for each in self.both)))

    def at(self, *numbers: float) -> Proposal:
        """Return one proposal of both, with numbers for their free parameters."""
        return self.fixed(*numbers).together()


class Effects:
    """Effects of the mutations that were tried on one of torch's arrays."""

    def __init__(self, torch: np.ndarray, jax: np.ndarray):
        places = np.random.default_rng(0).integers(jax.size, size=SAMPLE) if jax.size > SAMPLE else slice(None)
        self.sampled: Callable[[np.ndarray], np.ndarray] = lambda array: array.reshape(-1)[places]
        self.torch, self.jax, self.known = torch, jax, dict[Mutation, Effect]()
        self.tells = torch.shape == jax.shape and jax.size >= FEWEST and np.isfinite(jax).all() and (jax % 1).any()
        self.wanted = self.sampled(jax) - self.sampled(torch) if self.tells else np.zeros(0)

    def note(self, proposal: Proposal, array: np.ndarray | None, kind: int) -> None:
        """Note the effect of a mutation, once."""
        mutation = proposal.mutation
        if not self.tells or array is None or array.shape != self.torch.shape or mutation.key in self.known:
            return
        if not math.isfinite(mutation.value or 0.0):
            return  # a number that is left out has no direction
        size = self.sampled(array) - self.sampled(self.torch)
        if np.isfinite(size).all() and size.any():
            self.known[mutation.key] = Effect(proposal, size, kind)

    def distinct(self) -> list[Effect]:
        """Return one of the mutations of each effect; of numbers, one of each direction."""
        found: dict[bytes, Effect] = {}
        for each in self.known.values():
            scale = np.linalg.norm(each.size if each.proposal.free else self.wanted)
            found.setdefault(np.round(each.size / scale, 7).tobytes(), each)
        return [*found.values()]

    def leaders(self, run: Run) -> "list[Leader]":
        """Return the mutations that leave least of jax's difference by themselves, the first of them with the number that comes
        nearest, and what they leave."""
        every = self.distinct()
        left = [self.left_by(each) for each in every]
        order = sorted(range(len(every)), key=lambda i: np.linalg.norm(left[i].rest))[:LEADERS]
        return [self.refined(left[i], run) if rank < FIRST else left[i] for rank, i in enumerate(order)]

    def left_by(self, effect: Effect) -> "Leader":
        """Return what a mutation leaves of the difference, by its effect."""
        if effect.proposal.free is None:
            return Leader(effect.proposal, self.wanted - effect.size, None, effect.kind)
        share = (effect.size @ self.wanted) / (effect.size @ effect.size)
        return Leader(effect.proposal, self.wanted - share * effect.size, effect.size, effect.kind)

    def refined(self, leader: "Leader", run: Run) -> "Leader":
        """Return a leader with its free number solved for, as far as that goes."""
        proposal = leader.proposal
        if proposal.free is None:
            return leader
        start = proposal.mutation.value or proposal.free.start
        proposal = proposal.at(*gauss_newton(lambda x: run(leader.proposal.at(x)), (start,), self.jax))
        arrays = [run(proposal), run(larger(proposal))]
        if any(each is None or not np.isfinite(each).all() for each in arrays):
            return leader
        here, beside = (self.sampled(each) for each in arrays if each is not None)
        return Leader(proposal, self.sampled(self.jax) - here, beside - here, leader.kind)

    def pairs(self, leaders: "Sequence[Leader]") -> list[Pair]:
        """Return the pairs of a leader and another mutation whose effects add up nearest to jax's difference."""
        found: dict[frozenset[Mutation], tuple[float, Pair]] = {}
        every = self.distinct() if leaders else []
        if not every:
            return []
        sizes, is_free = np.stack([each.size for each in every]), np.array([each.proposal.free is not None for each in every])
        for leader in leaders:
            rest, own, more = leader.without_direction(sizes)
            with np.errstate(divide="ignore", invalid="ignore"):
                left = rest - np.where(is_free, more**2 / own, 2 * more - own)
            fits = (own > DISTINCT * np.square(sizes).sum(-1)) & (left <= NEAR**2 * rest)
            for i in np.flatnonzero(fits):
                pair = Pair(leader.proposal, every[i].proposal, leader.kind + every[i].kind)
                key = frozenset(each.mutation.key for each in pair.both)
                if pair.one.mutation.place != pair.other.mutation.place and left[i] < found.get(key, (np.inf, pair))[0]:
                    found[key] = float(left[i]), pair
        return [pair for _, pair in sorted(found.values(), key=itemgetter(0))[:MOST_PAIRS]]


class Leader(NamedTuple):
    """Mutation, and what it leaves of jax's difference."""

    proposal: Proposal
    rest: np.ndarray
    direction: np.ndarray | None
    """Effect of a change of its number, which is free; None without one."""
    kind: int

    def without_direction(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the squares of what is left and of the effects, and their products, without what is along the direction."""
        rest, products, squares = np.square(self.rest).sum(), sizes @ self.rest, np.square(sizes).sum(-1)
        if self.direction is None or not (length := self.direction @ self.direction):
            return rest, squares, products
        along, share = sizes @ self.direction, (self.rest @ self.direction) / length
        return rest - share**2 * length, squares - along**2 / length, products - share * along


def larger(proposal: Proposal) -> Proposal:
    """Return a proposal with its number a little larger; as it is without a free parameter."""
    return proposal.at((proposal.mutation.value or 0.0) * (1 + CLOSE))


def fitted(pair: Pair, run: Run, jax: np.ndarray, limit: float) -> tuple[tuple[float, ...], float] | None:
    """Return the numbers of both free parameters, as many as there are, and the residual; None if the pair does not give jax's
    array."""
    free = [each.free for each in pair.both if each.free]
    if not free:
        residual = off(run(pair.at()), jax)
        return ((), residual) if residual <= limit else None
    if len(free) == 1:
        alone = next(run(each) for each in pair.both if not each.free)
        found = alone is not None and solved(lambda x: run(pair.at(x)), free[0], alone, jax, limit)
        return ((found[0],), found[1]) if found else None
    start = [each.mutation.value or each.free.start for each in pair.both if each.free]
    first, second = gauss_newton(lambda *numbers: run(pair.at(*numbers)), start, jax)
    if not off(run(pair.at(first, second)), jax) <= NEARLY:
        return None
    for number in (x for x in rounded(first) if math.isclose(x, first, rel_tol=CLOSE)):
        alone = run(pair.at(number, free[1].start))
        near = Free(second, sure=True)
        found = alone is not None and solved(lambda x, number=number: run(pair.at(number, x)), near, alone, jax, limit)
        if found and found[1] <= EXPLAINED:
            return (number, found[0]), found[1]
    return None


def candidates_of(pair: Pair, residual: float, others: Sequence[Pair], owner: Site) -> list[Candidate]:
    """Return candidates for both mutations; one is ambiguous if another pair, as plain, fits without it."""
    places = [{each.mutation.place for each in other.both} for other in others if other.plainness == pair.plainness]
    found = [Candidate(each.mutation, residual, owner=owner) for each in pair.both]
    is_sure = [all(each.mutation.place in those for those in places) for each in found]
    return [each if sure else replace(each, certainty="ambiguous") for each, sure in zip(found, is_sure, strict=True)]
