"""Places after an end: where one side has no values, or one number that fills, and the end id after which they begin."""

import numpy as np

from jaxformer.parity.logprobs.evidence import cause, in_words
from jaxformer.parity.logprobs.report import LogprobCause
from jaxformer.parity.logprobs.sides import Side

FILLS = (0.0, 1.0)
"""Numbers with which libraries fill the log-probabilities of ids after an end."""
OFFSETS = (0, -1, 1)
"""Distance of the end id from the first place without values: there, at the place before, or at the one after."""


def filled(side: Side) -> np.ndarray:
    """True at the places `B L` that the side covers without values: they are not finite, all equal, or a fill up to the end."""
    if side.logits is not None:
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(side.logits).any(-1)
            same = (side.logits == side.logits[..., :1]).all(-1) & (side.logits.shape[-1] > 1)
        uniform = _to_the_end(side.covered & same, side.covered)
        uniform[(uniform == side.covered).all(1)] = False  # a whole row of them is no ending
        return _to_the_end(side.covered & ~finite, side.covered) | uniform
    assert side.chosen is not None
    values = np.concatenate([side.chosen, np.full((len(side.chosen), 1), np.nan)], 1)
    empty = ~np.isfinite(values) | np.isin(values, FILLS)
    return _to_the_end(side.covered & empty, side.covered)


def not_numbers(side: Side) -> np.ndarray:
    """True at the places `B L` that the side covers with NaN."""
    if side.logits is not None:
        return side.covered & np.isnan(side.logits).any(-1)
    assert side.chosen is not None
    return side.covered & np.pad(np.isnan(side.chosen), ((0, 0), (0, 1)))


def _to_the_end(here: np.ndarray, covered: np.ndarray) -> np.ndarray:
    """True where all covered places from here on are so."""
    after = np.flip(np.logical_and.accumulate(np.flip(here | ~covered, 1), 1), 1)
    return after & covered


def ending(side: Side, nothing: np.ndarray, ids: np.ndarray, prompt: int) -> LogprobCause | None:
    """Return the end id after which the side gives nothing, in every row that holds it; None if there is no such id.

    At least two rows have to end by it: in one row, some id stands before any place.
    """
    rows = np.flatnonzero(nothing.any(1))
    if len(rows) < 2:
        return None
    starts = {int(row): int(np.argmax(nothing[row])) for row in rows}
    for offset in OFFSETS:
        tokens = {int(ids[row, at + offset]) for row, at in starts.items() if 0 <= at + offset < ids.shape[1]}
        if len(tokens) != 1:
            continue
        (token,) = tokens
        firsts = [_first(ids[row], token, prompt) for row in range(len(ids))]
        last = int(np.flatnonzero(side.covered.any(0)).max())
        ends = [starts.get(row, last + 1) + offset for row in range(len(ids))]
        if all(
            end == first or (row not in starts and first >= end)
            for row, (end, first) in enumerate(zip(ends, firsts, strict=True))
        ):
            said = f"the {{sampler}} gives nothing after the end id {token}"
            return in_words(cause("end id", said, id=token, offset=offset), swapped=side.name == "trainer")
    return None


def _first(row: np.ndarray, token: int, prompt: int) -> int:
    found = np.flatnonzero(row[prompt:] == token)
    return prompt + int(found[0]) if len(found) else len(row) + len(OFFSETS)
