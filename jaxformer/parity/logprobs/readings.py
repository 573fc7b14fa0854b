"""Other readings of the ids by one side: its logits at shifted places, and what its function gives for other ids, at other
positions or without padding."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from jaxformer.parity.logprobs.evidence import cause
from jaxformer.parity.logprobs.report import LogprobCause
from jaxformer.parity.logprobs.sides import Side

SHIFTS = (1, -1, 2, -2)
MOST_WINDOWS = 6
"""Number of places at which a window is tried."""


class Reading(NamedTuple):
    """Logits `B L V` of another reading, the places `B L` where it has any, and its cause."""

    cause: LogprobCause
    logits: np.ndarray
    covered: np.ndarray


def shifted(side: Side, differs: np.ndarray) -> Iterator[Reading]:
    """Yield the side's logits at shifted places."""
    assert side.logits is not None
    for by in SHIFTS:
        if abs(by) < differs.shape[1]:
            said = f"the {{sampler}} gives at each place the {{trainer}}'s logits of {_places(by)}"
            logits, covered = np.roll(side.logits, -by, 1), np.roll(side.covered, -by, 1)
            covered[:, slice(-by, None) if by > 0 else slice(None, -by)] = False
            yield Reading(cause("shift", said, places=by), logits, covered)


def _places(by: int) -> str:
    return f"{abs(by)} place{'s' * (abs(by) > 1)} {'later' if by > 0 else 'earlier'}"


def unpadded(side: Side, ids: np.ndarray, valid: np.ndarray | None, differs: np.ndarray) -> Iterator[Reading]:
    """Yield the function's logits of rows without their padding, given as `valid` or taken from runs of one id at the left."""
    assert side.call is not None
    assert side.logits is not None
    own, padded = side.logits, _left_padding(ids) if valid is None else np.argmax(valid, 1)
    holes = valid is not None and not all(np.all(np.diff(row.astype(int)) <= 0) for row in _rolled(valid, padded))
    rows = np.flatnonzero(padded)
    if holes or not len(rows) or not differs[rows].any():
        return
    length = ids.shape[1]
    places = np.arange(length)
    back = np.clip(places - padded[:, None], 0, length - 1)
    covered = side.covered & (places >= padded[:, None])
    moved, said = _rolled(ids, padded), f"rows {', '.join(map(str, rows[:8]))}"

    def put(logits: np.ndarray) -> np.ndarray:
        return np.where((padded > 0)[:, None, None], np.take_along_axis(logits, back[..., None], 1), own)

    says = f"padding at the left of {said}: without it, the {{trainer}} gives there what the {{sampler}} gives"
    yield Reading(cause("padding", says, "trainer", rows=rows.tolist()), put(side.call(moved)), covered)
    if side.takes_positions:
        says = f"padding at the left of {said}: the {{sampler}} counts it in the positions"
        logits = put(side.call(moved, positions=places + padded[:, None]))
        yield Reading(cause("padding", says, rows=rows.tolist(), positions=True), logits, covered)


def _rolled(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Move each row to the left."""
    return np.take_along_axis(values, (np.arange(values.shape[1]) + by[:, None]) % values.shape[1], 1)


def _left_padding(ids: np.ndarray) -> np.ndarray:
    """Number of padding ids at the left of each row: the runs of one id, of unequal lengths, or more than one id long."""
    first = np.bincount(ids[:, 0]).argmax()
    runs = np.where((ids == first).all(1), 0, np.argmin(ids == first, 1))
    return runs if len({*runs.tolist()}) > 1 else np.zeros_like(runs)


def other_ids(side: Side, ids: np.ndarray, differs: np.ndarray, prompt: int) -> Iterator[Reading]:
    """Yield the function's logits of other ids and positions, from the first place that differs on.

    The length stays what it is: in a causal model, what stands at the right changes nothing before it.
    """
    first = int(np.argmax(differs.any(0)))
    for start in dict.fromkeys((first, prompt)):
        yield from _at_positions(side, ids, start)
    yield from _left_out(side, ids, first)
    yield from _twice(side, ids, first)
    yield from _window(side, ids, first)


def _at_positions(side: Side, ids: np.ndarray, start: int) -> Iterator[Reading]:
    if not side.takes_positions or side.call is None:
        return
    places = np.arange(ids.shape[1])
    kinds: dict[str, tuple[Callable[[np.ndarray], np.ndarray], dict[str, int | str]]] = {
        f"are {by:+d}": (lambda t, by=by: np.maximum(t + by, 0), {"by": by}) for by in SHIFTS
    }
    if start > 0:
        kinds["begin at 0 again"] = (lambda t: t - start, {"kind": "restart"})
        kinds[f"stay at {start - 1}"] = (lambda t: np.full_like(t, start - 1), {"kind": "constant"})
    for words, (move, args) in kinds.items():
        positions = np.where(places >= start, move(places), places)
        logits = side.call(ids, positions=np.tile(positions, (len(ids), 1)))
        said = f"the {{sampler}}'s positions {words} from place {start} on"
        yield Reading(cause("positions", said, place=start, **args), _from(side, logits, start), side.covered)


def _from(side: Side, logits: np.ndarray, start: int) -> np.ndarray:
    """Put other logits from a place on."""
    assert side.logits is not None
    return np.where((np.arange(logits.shape[1]) >= start)[:, None], logits, side.logits)


def _left_out(side: Side, ids: np.ndarray, first: int) -> Iterator[Reading]:
    """Yield logits without the first ids, or without one id at the place or before it."""
    assert side.call is not None
    length = ids.shape[1]
    cuts = {(0, n) for n in (1, 2, first) if 0 < n < length} | {(at, at + 1) for at in (first - 1, first) if 0 < at < length}
    for at, end in sorted(cuts):
        without = np.concatenate([ids[:, :at], ids[:, end:], ids[:, : end - at]], 1)
        logits = np.roll(side.call(without), end - at, 1)
        covered = side.covered.copy()
        covered[:, at:end] = False
        which = f"id {at}" if end == at + 1 else f"ids {at} to {end - 1}"
        said = f"the {{sampler}} does not see {which} of each row, and what follows stands earlier"
        yield Reading(cause("left-out ids", said, first=at, last=end - 1), _from(side, logits, end), covered)


def _twice(side: Side, ids: np.ndarray, first: int) -> Iterator[Reading]:
    """Yield logits with the first id, or one at the place or before it, read twice."""
    assert side.call is not None
    for at in sorted({0, max(first - 1, 0), first}):
        again = np.concatenate([ids[:, : at + 1], ids[:, at:-1]], 1)
        logits = np.roll(side.call(again), -1, 1)
        covered = side.covered.copy()
        covered[:, -1] = False
        for start in (at, at + 1):
            said = f"the {{sampler}} reads id {at} of each row twice"
            known = cause("repeated id", said, id=at, from_place=start)
            yield Reading(known, _from(side, logits, start), covered)


def _window(side: Side, ids: np.ndarray, first: int) -> Iterator[Reading]:
    """Yield logits of the last ids alone: as many as there are at the place before the first that differs."""
    assert side.call is not None
    length = ids.shape[1]
    if not 0 < first < length - 1:
        return
    assert side.logits is not None
    logits, covered = np.array(side.logits, np.float64), side.covered.copy()
    covered[:, first:] = False
    for t in np.unique(np.linspace(first, length - 1, MOST_WINDOWS).astype(int)):
        logits[:, t] = side.call(np.roll(ids, -(t - first + 1), 1))[:, first - 1]
        covered[:, t] = side.covered[:, t]
    yield Reading(cause("window", f"the {{sampler}} reads the last {first} ids alone", ids=first), logits, covered)
