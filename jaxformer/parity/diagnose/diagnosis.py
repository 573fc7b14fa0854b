"""Results of a search: candidates (mutations that give jax's array) and diagnoses, as data and in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jaxformer.parity.diagnose.mutation import Change, Mutation
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.report.data import Cause, Target
from jaxformer.parity.trace.call_sites import ArrayKey, Site

EMPTY_ROWS = "only in rows where every key is masked"
KNOWN = Change("known.sentence", "{says}", torch="")
Certainty = Literal["exact", "float32", "ambiguous", "integers"]
"""Certainty of a candidate.

'exact': the residual is float64 rounding. 'float32': it is float32 rounding. 'ambiguous': another number gives jax's array too.
'integers': the arrays are integers, which many mutations may give.
"""


@dataclass(frozen=True)
class Candidate:
    """A mutation that gives jax's array."""

    mutation: Mutation
    residual: float | None = None
    """Remaining relL2 difference; None where nothing is computed, since the arrays themselves tell the cause."""
    certainty: Certainty = "exact"
    owner: Site | None = None
    """Call of torch's whose code is mutated."""
    explains: frozenset[ArrayKey] = frozenset()
    """torch's places at which the mutation gives jax's array, and torch's code does not."""

    @property
    def is_vague(self) -> bool:
        """True if the candidate is ambiguous."""
        return self.certainty == "ambiguous"

    @property
    def plainness(self) -> tuple[int, int]:
        """Sort key, plain candidates first: the cost of the change, then the digits of the number.

        Omissions are cheapest; repetitions are dearest, since nobody does a thing twice where another number has the same
        effect.
        """
        name = say(self.mutation.value or 0.0).rpartition(" = ")[2]
        return self.mutation.change.cost, sum(letter.isdigit() for letter in name)

    def words(self, *, residual: bool = True) -> str:
        """Describe the candidate: 'torch eps 1e-05; jax eps 1e-06 (residual 2e-16)'."""
        torch, jax = self.mutation.words()
        jax = f"{jax}, as it seems: others fit too" if self.is_vague else jax
        said = f"torch {torch}; jax {jax}" if torch else jax
        if not residual or self.residual is None:
            return said
        rounding = ", float32's rounding" if self.certainty == "float32" else ""
        return f"{said} (residual {self.residual:.0e}{rounding})"


def plain(change: Change, residual: float | None = None, **args: object) -> Candidate:
    """Build a candidate without targets in torch's code: the arrays alone tell the cause."""
    return Candidate(Mutation(change, (), tuple(args.items())), residual)


@dataclass(frozen=True)
class Diagnosis:
    """Candidates that explain a difference; false where there are none."""

    candidates: tuple[Candidate, ...] = ()
    """Candidates, the plainest first; the others explain as much, each at a place of its own."""
    beside: Mapping[str, "Diagnosis"] = field(default_factory=dict)
    """Diagnoses of several arrays that differ for reasons of their own, by the names of the arrays."""
    together: bool = False
    """True if the candidates are one cause, of which all are needed."""
    empty_rows: bool = False
    """True if both sides differ only in rows where every key is masked."""
    tried: int = 0
    """Number of mutations tried."""
    spent: bool = False
    """True if the search ended because its budget was used up."""
    nearly: str = ""
    """Words for a mutation that gives this array but contradicts another array of jax's code."""

    def __bool__(self) -> bool:
        return bool(self.candidates or self.beside)

    def __str__(self) -> str:
        if self.beside:
            return "; beside it, ".join(f"{what}: {each}" for what, each in self.beside.items())
        if not self.candidates:
            return ""
        first, *others = self.candidates
        if self.together:
            said = "; beside it, ".join(each.words(residual=False) for each in self.candidates)
            return f"{said} (residual {first.residual:.0e})"
        if not first.mutation.change.reroutes:
            others = [other for other in others if not other.mutation.change.reroutes]
        said = first.words() + (
            f", or the same: {', or '.join(each.words(residual=False) for each in others)}" if others else ""
        )
        if first.certainty == "integers":
            said = f"as if {said}: other changes may give these integers too"
        return f"{EMPTY_ROWS}: {said}" if self.empty_rows else said

    @property
    def first(self) -> Candidate | None:
        """Plainest candidate; None if there is none, or if several arrays have causes of their own."""
        return self.candidates[0] if self.candidates else None

    def same_as(self, other: "Diagnosis") -> bool:
        """True if another diagnosis has the same mutations; residuals may differ."""
        mine, its = ([each.mutation for each in those.candidates] for those in (self, other))
        return mine == its and self.empty_rows == other.empty_rows

    def as_integers(self) -> "Diagnosis":
        """Return the diagnosis with the certainty 'integers': several mutations may give an array of integers."""
        return replace(self, candidates=tuple(replace(each, certainty="integers") for each in self.candidates))

    def causes(self, place: str = "output") -> list[Cause]:
        """Convert to the report's data; `place` names the array that differs."""
        if self.beside:
            return [cause for what, each in self.beside.items() for cause in each.causes(what)]
        return [reported(each, place) for each in self.candidates]


def reported(candidate: Candidate, place: str = "output") -> Cause:
    """Convert a candidate to the report's data. Without targets in torch's code, the target is the array itself, unless that is
    the module's output."""
    mutation = candidate.mutation
    return Cause(
        mutation.change.operator,
        mutation.change.name,
        [*mutation.targets] or [Target(place)] * (place != "output"),
        {name: as_json(value) for name, value in mutation.args},
        mutation.value,
        candidate.residual,
        candidate.certainty,
        candidate.words(residual=False),
    )


def as_json(value: Any) -> Any:
    """Convert an argument of a mutation to a JSON value."""
    if isinstance(value, tuple):
        return [*map(as_json, value)]
    return str(value) if isinstance(value, complex) else value


def sentence(words: str) -> Diagnosis:
    """Build a diagnosis from words of a check that finds its own cause; empty for ''."""
    return Diagnosis((plain(KNOWN, says=words),)) if words else Diagnosis()
