"""Integers to try in place of torch's: positions, tokens, rows of a table of distances, and positions that are counted by a
mask; and words for which units are rotary pairs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.operators.masks import is_new_mask, kept_keys
from jaxformer.parity.diagnose.operators.rotary_tables import LAYOUTS
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.trace.call_records import arrays_in

MOST_TOKENS, FEW = 64, 4
MOST_DISTANCES = 32
GRID, SEEN = "of a grid of {height} x {width}", "that count unmasked tokens alone (`cumsum(mask) - 1`)"
WORDS = {
    "constant": "{number} everywhere",
    "more": "moved by {more:+d}",
    "more_clipped": "moved by {more:+d}, clipped to those that there are",
    "inverted": "with 0 and 1 exchanged",
    "from_0": "from 0 on (less the smallest)",
    "at_most": "{most} at most",
    "transposed": "with the last two axes exchanged (a transposition)",
    "by_columns": "of {height} x {width} positions, column by column",
    "count_from_0": "from 0 on in every row (`arange`)",
    "end_at_last": "counted so that every row ends at the last",
    "begin_again": "that begin again after every {every}",
    "torch_begin_again": "that begin again after every {every} of torch's",
    "repeated": "{times} times each",
    "torch_repeated": "{times} times each of torch's",
    "first_row": "of the first row for all rows",
    "reversed": "from the last to the first",
    "from_end": "from the table's other end",
    "grid_swapped": f"{GRID}, its axes exchanged",
    "grid_first_flipped": f"{GRID}, its first axis from the other end",
    "grid_second_flipped": f"{GRID}, its second axis from the other end",
    "first_token": "{number} for {token} at the beginning",
    "rolled_later": "one later, rolled around: the last of each row first",
    "rolled_earlier": "one earlier, rolled around: the first of each row last",
    "later": "one later, {number} at the beginning",
    "earlier": "one earlier, {number} at the end",
    "token": "{number} for {token}",
    "seen": SEEN,
    "seen_itself": "that are the mask itself, 0 and 1",
    "seen_after_minus_1": f"{SEEN}, -1 before them",
    "seen_filled": f"{SEEN}, {{number}} at the others",
    "seen_masked": f"{SEEN}, times the mask and 1 more",
}


def worded(before: str) -> dict[str, str]:
    """Words of a change for each way in which integers differ: `before` and the way's words."""
    return {how: f"{before} {words}" for how, words in WORDS.items()}


@dataclass(frozen=True)
class Way:
    """Way in which integers differ from torch's: a key of `WORDS`, and the numbers in its words."""

    how: str
    numbers: tuple[tuple[str, int], ...]

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of a mutation."""
        return {"how": self.how, **dict(self.numbers)}

    def __str__(self) -> str:
        return WORDS[self.how].format(**dict(self.numbers))


class Other(NamedTuple):
    """Integers to try in place of torch's, and the way in which they differ."""

    way: Way
    ids: torch.Tensor


Others = Iterator[Other]


def told(how: str, ids: torch.Tensor, **numbers: int) -> Other:
    """Pair integers with the way in which they differ."""
    return Other(Way(how, tuple(numbers.items())), ids)


def other_ids(ids: torch.Tensor, rows: int) -> Others:
    """Other ids of rows for a table of `rows` rows, the plain ones first."""
    for other in every(ids, rows):
        if other.ids.shape == ids.shape and other.ids.min() >= 0 and other.ids.max() < rows and not torch.equal(other.ids, ids):
            yield other


def every(ids: torch.Tensor, rows: int) -> Others:
    """Other integers, those beyond the table included."""
    length = math.isqrt(ids.numel())
    if ids.ndim == 1 and length**2 == len(ids) > FEW and not steps(ids, 0):  # ids of pairs of positions, flattened
        for way, other in every(ids.reshape(length, length), rows):
            yield Other(way, other.reshape(-1))
        return
    for number in (0, 1):
        yield told("constant", 0 * ids + number, number=number)
    for more in (1, -1, 2, -2):
        yield told("more", ids + more, more=more)
        yield told("more_clipped", (ids + more).clamp(0, rows - 1), more=more)
    if ids.max() == 1:
        yield told("inverted", 1 - ids)
    yield told("from_0", ids - ids.min())
    if ids.ndim > 1 and ids.shape[-1] == ids.shape[-2] > 1:
        yield from other_pairs(ids)
    yield from other_positions(ids)
    yield from on_grids(ids, rows)
    for most in range(1, int(ids.max())) if ids.max() <= MOST_DISTANCES else ():
        yield told("at_most", ids.clamp(max=most), most=most)
    yield from other_tokens(ids, rows)


def other_positions(ids: torch.Tensor) -> Others:
    """Other positions along the last axis that is longer than 1."""
    axis = next((axis for axis in range(ids.ndim - 1, -1, -1) if ids.shape[axis] > 1), None)
    if axis is None:
        return
    length = ids.shape[axis]
    plain = torch.arange(length, dtype=ids.dtype).reshape(-1, *[1] * (ids.ndim - 1 - axis)).expand_as(ids)
    if steps(ids, axis):
        yield told("count_from_0", plain)
        yield told("end_at_last", plain + (int(ids.max()) + 1 - length))
        for whose, each in (("", plain),) if torch.equal(plain, ids) else (("", plain), ("torch_", ids)):
            for n in range(2, length):
                yield told(f"{whose}begin_again", each % n, every=n)
            for n in range(2, FEW + 1):
                yield told(f"{whose}repeated", each.div(n, rounding_mode="floor"), times=n)
    if axis:
        yield told("first_row", ids.narrow(0, 0, 1).expand_as(ids))
    yield told("reversed", ids.flip(axis))
    for n in range(1, length - 1) if steps(ids, axis) else ():
        yield told("at_most", ids.clamp(max=n), most=n)


def steps(ids: torch.Tensor, axis: int) -> bool:
    """True if, along the axis, most ids are 1 more than the one before."""
    return bool((ids.diff(dim=axis) == 1).double().mean() > 0.5)


def other_pairs(ids: torch.Tensor) -> Others:
    """Other ids of pairs of positions: each pair exchanged, or positions of a grid column by column."""
    length = ids.shape[-1]
    yield told("transposed", ids.transpose(-1, -2))
    for height in divisors(length):
        order = torch.arange(length).reshape(height, -1).T.reshape(-1)
        yield told("by_columns", ids[..., order, :][..., order], height=height, width=length // height)


def on_grids(ids: torch.Tensor, rows: int) -> Others:
    """Other ids for a table with one row for each place of a grid: its axes exchanged, or counted from the other end. A line
    counts as a grid of 1 x n."""
    if ids.ndim < 2:
        return
    yield told("from_end", rows - 1 - ids)
    for height in divisors(rows):
        width = rows // height
        y, x = ids // width, ids % width
        yield told("grid_swapped", x * height + y, height=height, width=width)
        yield told("grid_first_flipped", (height - 1 - y) * width + x, height=height, width=width)
        yield told("grid_second_flipped", y * width + width - 1 - x, height=height, width=width)


def divisors(n: int) -> list[int]:
    """Divisors of `n` other than 1 and `n`."""
    small = [each for each in range(2, math.isqrt(n) + 1) if n % each == 0]
    return sorted({*small, *(n // each for each in small)})


def other_tokens(ids: torch.Tensor, rows: int) -> Others:
    """Other tokens: another first token of each row, another one in place of a token, tokens moved along the row."""
    if ids.ndim != 2 or ids.shape[1] < 2:
        return
    few, first = [*range(min(rows, MOST_TOKENS)), rows - 1], ids[:, :1]
    if (first == first[0]).all():
        for number in few:
            yield told("first_token", torch.cat([0 * first + number, ids[:, 1:]], 1), number=number, token=int(first[0]))
    yield told("rolled_later", ids.roll(1, 1))
    yield told("rolled_earlier", ids.roll(-1, 1))
    for number in few:
        yield told("later", torch.cat([0 * first + number, ids[:, :-1]], 1), number=number)
    for token in {*range(FEW)} & {*ids.flatten().tolist()}:
        for number in few:
            yield told("token", torch.where(ids == token, number, ids), number=number, token=token)


def other_targets(ids: torch.Tensor) -> Others:
    """Other targets of a loss: moved along the row; or of another class, where the smallest, a negative one, is not counted."""
    least = int(ids.min())
    if ids.ndim == 2:
        yield told("rolled_later", ids.roll(1, 1))
        yield told("rolled_earlier", ids.roll(-1, 1))
        for number in dict.fromkeys((least, 0)):
            end = torch.full_like(ids[:, :1], number)
            yield told("later", torch.cat([end, ids[:, :-1]], 1), number=number)
            yield told("earlier", torch.cat([ids[:, 1:], end], 1), number=number)
    for token in sorted({*ids.flatten().tolist()} - {least})[:MOST_TOKENS] if least < 0 else ():
        yield told("token", torch.where(ids == token, least, ids), number=least, token=token)


def by_masks(replay: Replay, length: int) -> Others:
    """Positions `B T` that count the visible tokens of a mask from 0; the ways differ in the positions of masked tokens."""
    for valid in valid_tokens(replay, length):
        counted = valid.long().cumsum(-1) - 1
        yield told("seen", counted.clamp(min=0))
        yield told("seen_itself", valid.long())
        yield told("seen_after_minus_1", counted)
        for number in (0, 1):
            yield told("seen_filled", counted.masked_fill(~valid, number), number=number)
        yield told("seen_masked", (counted + 1) * valid)


def valid_tokens(replay: Replay, length: int) -> Iterator[torch.Tensor]:
    """Visible tokens of every mask that hides tokens from all queries: `B T`, True where a token is seen."""
    seen: list[torch.Tensor] = []
    found: list[torch.Tensor] = []
    for array in (*arrays_in(replay.arguments), *replay.call_inputs, *(op.output for op in replay.operations)):
        for valid in tokens_of(array, length, seen):
            if not valid.all() and valid.any() and not any(torch.equal(valid, other) for other in found):
                found.append(valid)
                yield valid


def tokens_of(array: Any, length: int, seen: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Visible tokens `B T` of one mask: additive, of 0 and 1, or boolean. Booleans are read in both senses."""
    if not isinstance(array, torch.Tensor) or array.ndim < 2 or array.shape[-1] != length:
        return
    if array.is_floating_point():
        masks = [kept_keys(array)] if is_new_mask(array, seen) else []
    elif array.dtype == torch.bool:
        masks = [array, ~array]
    else:
        masks = [array.bool()] if array.ndim == 2 and array.max() == 1 and array.min() == 0 else []
    for keep in masks:
        yield keep.reshape(len(keep), -1, length).any(1)


def paired(words: str) -> dict[str, str]:
    """Words for torch's pairs, {0}, and for the others, {1}, by torch's layout."""
    both = "half and half", "interleaved"
    return dict(zip(LAYOUTS, (words.format(*both), words.format(*both[::-1])), strict=True))
