"""Report of a comparison of log-probabilities: figures, causes, and what the given values cannot tell."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxformer.parity.report.data import EXIT_CODES
from jaxformer.parity.report.report import as_strict_json, from_strict_json
from jaxformer.parity.report.text import count

SideName = Literal["trainer", "sampler"]
SCHEMA = 1
"""Version of the report's JSON."""
WORDS = {"equal": "EQUAL", "different": "DIFFERENT", "failed": "COULD NOT COMPARE"}


@dataclass(frozen=True)
class LogprobCause:
    """Transformation of one side's distributions that gives the other side's."""

    name: str
    """Name: 'temperature', 'top-p', 'rounding', 'padding'."""
    side: SideName
    """Side that does it."""
    args: dict[str, Any]
    """Numbers and switches by name, solved ones among them."""
    says: str
    """Description in words."""


@dataclass(frozen=True)
class LogprobReport:
    """Comparison of a trainer's with a sampler's log-probabilities of the same ids; `print(report)` shows it as plain text.

    Place t of a row is the distribution of the id after `ids[row, t]`. Lists by row and place have NaN where nothing is judged.
    """

    status: Literal["equal", "different", "failed"]
    why: str
    """Reason why nothing could be compared; else ''."""
    given: dict[str, str]
    """Side -> what it gave."""
    n_places: int
    """Number of places that both sides give and that are no padding."""
    n_different: int
    """Number of these that differ by more than rounding."""
    first: list[int] | None
    """Row and place of the first difference: the first place, and the first row there."""
    precision: str
    """Type whose rounding is allowed: 'float32' or 'float64'."""
    tolerance: float
    """Largest difference of two log-probabilities that counts as rounding, at the place with the largest logits."""
    kl: list[list[float]] | None
    """KL(trainer || sampler) in nats, by row and place; infinite where the sampler drops ids. None without distributions."""
    kl_backward: list[list[float]] | None
    """KL(sampler || trainer)."""
    kl_mean: float
    kl_max: float
    kl_backward_mean: float
    kl_backward_max: float
    difference_mean: float
    """Mean |log p_trainer - log p_sampler| of the ids that follow."""
    difference_max: float
    ratio_mean: float
    """Mean importance ratio p_trainer / p_sampler of the ids that follow."""
    ratio_min: float
    ratio_max: float
    effective_sample_size: float
    """(sum of ratios)^2 / sum of their squares, as a share of their number: 1 if all are equal."""
    causes: list[LogprobCause] = field(default_factory=list)
    """Causes that together give one side's distributions from the other's, in the order in which they act; empty if none is
    known."""
    alternatives: list[list[LogprobCause]] = field(default_factory=list)
    """Other causes that fit as well."""
    notes: list[str] = field(default_factory=list)
    """Observations that are no proof of a cause."""
    cannot_tell: list[str] = field(default_factory=list)
    """Questions that the given values leave open."""

    @property
    def exit_code(self) -> int:
        """0 for equal, 1 for different, 2 for not compared."""
        return EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        """Last line of the report."""
        return f"{WORDS[self.status]}: {self._because()}"

    def _because(self) -> str:
        if self.status == "failed":
            return self.why
        if self.status == "equal":
            return f"the same at {count(self.n_places, 'place')}, to the rounding of {self.precision}"
        if self.causes:
            return " -- or as well: ".join(_joined(each) for each in (self.causes, *self.alternatives))
        where = f"first at row {self.first[0]}, place {self.first[1]}" if self.first else "where one side gives nothing"
        return f"{where}; no known cause gives it"

    def to_json(self) -> str:
        """Serialise the report as strict JSON; `from_json` reads it back."""
        return as_strict_json(self, verdict=self.verdict, schema=SCHEMA)

    @classmethod
    def from_json(cls, text: str) -> "LogprobReport":
        """Parse what `to_json` wrote; InputError in one line for anything else."""
        return from_strict_json(cls, text, ignored=("verdict", "schema"))

    def __str__(self) -> str:
        rows = [(name, said) for name, said in self.given.items()] + (self._figures() if self.status != "failed" else [])
        rows += [("note", said) for said in self.notes] + [("cannot tell", said) for said in self.cannot_tell]
        return "\n".join([*(f"{name:26}{said}" for name, said in rows), self.verdict])

    def _figures(self) -> list[tuple[str, str]]:
        of = f"{self.n_different} of {self.n_places} differ"
        first = f", first at row {self.first[0]}, place {self.first[1]}" if self.first else ""
        ratio = f"mean {self.ratio_mean:.6g}, {self.ratio_min:.3g} to {self.ratio_max:.3g}"
        found = [("places", f"{of}{first} (tolerance {self.tolerance:.1e}, rounding of {self.precision})")]
        if self.kl is not None:
            found.append(("KL(trainer || sampler)", f"mean {self.kl_mean:.2e}, max {self.kl_max:.2e} nats"))
            found.append(("KL(sampler || trainer)", f"mean {self.kl_backward_mean:.2e}, max {self.kl_backward_max:.2e} nats"))
        found.append(("|log p| of the ids apart", f"mean {self.difference_mean:.2e}, max {self.difference_max:.2e}"))
        size = f"effective sample size {f'{share:.1%}' if (share := self.effective_sample_size) == share else 'undefined'}"
        return [*found, ("ratio trainer / sampler", f"{ratio}; {size}")]


def _joined(causes: Sequence[LogprobCause]) -> str:
    """Join causes in words, in the order in which they act; a side is named once."""
    said = causes[0].says
    for before, cause in itertools.pairwise(causes):
        subject = f"the {cause.side} "
        alike = before.says.startswith(subject) and cause.says.startswith(subject)
        said += f", then {cause.says.removeprefix(subject) if alike else cause.says}"
    return said
