"""What a search found: the mutations that give jax's array, as data and in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jaxformer.parity.diagnose.mutation import Change, Mutation
from jaxformer.parity.report.data import Cause, Target
from jaxformer.parity.trace.call_sites import ArrayKey, Site

EMPTY_ROWS = "only in rows where every key is masked"
KNOWN = Change("known.sentence", "{says}", torch="")
Certainty = Literal["exact", "float32", "ambiguous", "integers"]
"""'float32': but for its rounding. 'ambiguous': another number gives the same. 'integers': many changes may give them."""


@dataclass(frozen=True)
class Candidate:
    """A mutation that gives jax's array."""

    mutation: Mutation
    residual: float | None = None
    """relL2; None where the arrays are the same, or say by themselves why they differ."""
    certainty: Certainty = "exact"
    owner: Site | None = None
    """torch's call whose code is mutated."""
    explains: frozenset[ArrayKey] = frozenset()
    """torch's places at which jax's arrays come with it."""

    def words(self, *, residual: bool = True) -> str:
        """'torch eps 1e-05; jax eps 1e-06 (residual 2e-16)'"""
        torch, jax = self.mutation.words()
        jax = f"{jax}, as it seems: others fit too" if self.certainty == "ambiguous" else jax
        said = f"torch {torch}; jax {jax}" if torch else jax
        if not residual or self.residual is None:
            return said
        rounding = ", float32's rounding" if self.certainty == "float32" else ""
        return f"{said} (residual {self.residual:.0e}{rounding})"


def plain(change: Change, residual: float | None = None, **args: object) -> Candidate:
    """A cause that arrays tell, without torch's code."""
    return Candidate(Mutation(change, (), tuple(args.items())), residual)


@dataclass(frozen=True)
class Diagnosis:
    """Why arrays differ, as far as it was found."""

    candidates: tuple[Candidate, ...] = ()
    """The plainest first; the others give as much, each at a place of its own."""
    beside: Mapping[str, "Diagnosis"] = field(default_factory=dict)
    """Where several arrays differ, each for a reason of its own: by what they are."""
    together: bool = False
    """Whether the candidates are one cause: all of them are needed."""
    empty_rows: bool = False
    """Whether both sides differ only in rows in which every key is masked."""
    tried: int = 0
    """Mutations."""
    spent: bool = False
    """Whether the search ended because its budget did."""
    nearly: str = ""
    """What gives this array, and not another one that jax's code makes."""

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
        """The plainest, where all arrays have one cause."""
        return self.candidates[0] if self.candidates else None

    def same_as(self, other: "Diagnosis") -> bool:
        """But for residuals."""
        mine, its = ([each.mutation for each in those.candidates] for those in (self, other))
        return mine == its and self.empty_rows == other.empty_rows

    def as_integers(self) -> "Diagnosis":
        """Of whole numbers, which several changes may give."""
        return replace(self, candidates=tuple(replace(each, certainty="integers") for each in self.candidates))

    def causes(self, place: str = "output") -> list[Cause]:
        """For the report; `place` is the array that the causes are of."""
        if self.beside:
            return [cause for what, each in self.beside.items() for cause in each.causes(what)]
        return [reported(each, place) for each in self.candidates]


def reported(candidate: Candidate, place: str = "output") -> Cause:
    """As data of the report. What arrays tell is about one of them, unless it is what the module gives."""
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
    """A mutation's argument as JSON has it."""
    if isinstance(value, tuple):
        return [*map(as_json, value)]
    return str(value) if isinstance(value, complex) else value


def sentence(words: str) -> Diagnosis:
    """A cause that is known by a check of its own."""
    return Diagnosis((plain(KNOWN, says=words),)) if words else Diagnosis()
