"""Tolerances that are relaxed where torch's own rounding, in float64, moves an array by more than tier A allows."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from jaxformer.parity.numerics.metrics import TOLERANCES, Error, Kind, over

INCONCLUSIVE = 1e-6
"""An array that rounding moves by more than that is not judged by float64."""


class Relaxed(NamedTuple):
    """An array over tier A's tolerance that counts as equal, since torch's own rounding may be why."""

    name: str
    moved: float
    """By rounding alone: relL2 or max/rms."""
    tolerance: float
    """Its own, in place of tier A's."""


def is_relaxed(found: Error, kind: Kind) -> bool:
    """Whether an error would be over the tolerance if torch did not round."""
    return over(replace(found, rounding=0.0, rounding_peak=0.0), kind) and not over(found, kind)


def relaxed_tolerances(found: Iterable[tuple[str, Error | None]], kind: Kind) -> list[Relaxed]:
    """Of all errors that need one, the largest tolerance first."""
    relaxed = []
    for name, error in found:
        if error is not None and is_relaxed(error, kind):
            by_size = error.relative > TOLERANCES[kind][0]
            moved = error.rounding if by_size else error.rounding_peak
            relaxed.append(Relaxed(name, moved, error.allowed(kind)[0 if by_size else 1]))
    return sorted(relaxed, key=lambda each: -each.tolerance)


def note(found: list[Relaxed]) -> str:
    """What a stage adds where tolerances were relaxed, else ''."""
    if not found:
        return ""
    name, moved, tolerance = found[0]
    more = f", and {len(found) - 1} more likewise" if len(found) > 1 else ""
    return f"; ill-conditioned: torch's own rounding moves {name} by {moved:.1e}, judged against {tolerance:.1e}{more}"


def inconclusive(found: Iterable[Relaxed]) -> list[str]:
    """Arrays that rounding moves too far to be judged."""
    return [f"{name} (torch's own rounding moves it by {moved:.0e})" for name, moved, _ in found if not moved <= INCONCLUSIVE]
