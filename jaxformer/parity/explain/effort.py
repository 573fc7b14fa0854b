"""How much a search may do: counted, so that it ends at the same place on every machine."""

from dataclasses import dataclass
from typing import Any

EACH, ALL = 700_000, 1_400_000
"""Operations of torch's that are run again: for one difference, and for all of a comparison; some ten seconds, and half a
minute, on one core."""


@dataclass
class Effort:
    """What is left of it, for one difference."""

    left: float

    @classmethod
    def of(cls, hints: dict[Any, Any]) -> "Effort":
        """As much as the others of the run have left; `hints` has what explained them."""
        return cls(min(EACH, hints.setdefault("effort", ALL)))

    def spend(self, operations: float) -> None:
        """On one run."""
        self.left -= operations

    @property
    def is_spent(self) -> bool:
        """Whether the search has to end."""
        return self.left <= 0
