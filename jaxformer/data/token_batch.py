"""Token ids of several texts as one array: truncated to a longest row, and padded."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from jaxformer.errors import InputError
from jaxformer.runtime.packages import extra_package
from jaxformer.validation.fields import check_size

with extra_package():
    from tokenizers import Encoding


class Batch(NamedTuple):
    """Texts as rows of ids, padded on the right to the longest row."""

    ids: Int32[np.ndarray, "B T"]
    """Token ids; padding is `pad`, or 0 without such a token (then decode `ids[row][valid[row]]`)."""
    valid: Bool[np.ndarray, "B T"]
    """True for a token, False for padding."""
    types: Int32[np.ndarray, "B T"]
    """1 for the second text of a pair and the end after it, else 0."""


def truncate(rows: list[list[Encoding]], longest: int, special: int) -> None:
    """Truncate texts, or texts and their pairs, so that each row has at most `longest` tokens, `special` ones included."""
    check_size("longest", longest)
    if longest < special + len(rows):
        raise InputError(f"longest = {longest} leaves a text no room for a token; give {special + len(rows)} or more")
    for row in zip(*rows, strict=True):
        for part, kept in zip(row, _shares([len(part) for part in row], longest - special), strict=True):
            part.truncate(kept)


def pad_rows(rows: list[Encoding], pad: int) -> Batch:
    """Pad the rows to one batch."""
    lengths = np.array([len(row) for row in rows])
    valid = np.arange(lengths.max()) < lengths[:, None]
    ids, types = np.full(valid.shape, pad, np.int32), np.zeros(valid.shape, np.int32)
    ids[valid] = [i for row in rows for i in row.ids]
    types[valid] = [i for row in rows for i in row.type_ids]
    return Batch(ids, valid, types)


def _shares(lengths: list[int], room: int) -> list[int]:
    """Return how many tokens each text may keep if `room` tokens fit in all."""
    if len(lengths) == 1:
        return [room]
    less = min(*lengths, room // 2)
    return [less, room - less] if lengths[0] <= lengths[1] else [room - less, less]
