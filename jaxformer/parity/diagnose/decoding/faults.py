"""Faults of caches and prompts, as data: mutations of torch's decoding that may give jax's logits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

MOST_EMPTY = 64
"""Bound of the number of empty cache slots after the last token."""


class Seen(NamedTuple):
    """Queries and keys of an array of scores, by their positions."""

    key: torch.Tensor
    """Positions of the keys `S`."""
    row: torch.Tensor
    """Positions of the queries `T 1`."""
    prompt: int
    """Number of tokens in the prompt."""


Hidden = Callable[[Seen], torch.Tensor]
"""Function that gives a mask `T S`: True for the keys that a fault concerns."""


@dataclass(frozen=True)
class Fault:
    """Fault in every step after the prompt, or in the prompt itself (`unmasked`)."""

    says: str
    position: Callable[[int, int], int] | None = None
    """(position, length of the prompt) -> the position used instead."""
    hides: Hidden | None = None
    """Keys that are not seen."""
    without_keys: Hidden | None = None
    """Slots in which keys are 0."""
    without_values: Hidden | None = None
    """Slots in which values are 0."""
    late: tuple[int, int] = (0, 0)
    """Slots by which keys (0) and values (1) of steps are written late, or early if negative; a slot in between is 0."""
    empty: Callable[[int], int] | None = None
    """Number of tokens so far -> number of empty slots (zeros) that are seen too."""
    from_first: tuple[int, ...] = ()
    """Caches that every layer takes from the first layer, but for the step's own token: keys (0), values (1)."""
    cache: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None
    """(cached part, new part) -> both parts as a step reads them, for keys and for values."""
    angles: Callable[[int, int], int] | None = None
    """(position, length of the prompt) -> the position used instead in rotations alone."""
    still: tuple[int, ...] = ()
    """Vectors that are not rotated: queries (0), keys (1)."""
    written: tuple[int, int] = (0, 1)
    """New entries of the cache of keys, and of that of values: keys (0) or values (1)."""
    ids: Callable[[Sequence[np.ndarray], int], np.ndarray] | None = None
    """(ids of all steps, number of the step) -> ids that the step is given."""
    bias: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Score bias `... T S` -> the bias that a step uses instead."""
    unmasked: bool = False
    """True if the tokens of the prompt see each other, whatever the mask is."""


def of_steps(seen: Seen) -> Any:
    """Mask of the tokens of all steps so far."""
    return (seen.key >= seen.prompt) & (seen.key <= seen.row)


def before(seen: Seen) -> Any:
    """Mask of the tokens of earlier steps."""
    return (seen.key >= seen.prompt) & (seen.key < seen.row)


def itself(seen: Seen) -> Any:
    """Mask of the query's own token."""
    return seen.key == seen.row


def sources(seen: Seen, late: int) -> torch.Tensor:
    """Tokens that the slots of a cache hold for each query, `T S`, if those of steps are written one slot late (1) or early
    (-1); -1 for an empty slot."""
    key, first = seen.key.expand(len(seen.row), -1), seen.prompt
    if late > 0:
        return torch.where(key > first, key - 1, key).masked_fill(key == first, -1)
    return torch.where(key >= first - 1, key + 1, key).masked_fill(key >= seen.row, -1)


def of_first_row(x: torch.Tensor) -> torch.Tensor:
    """Put the first row of the batch in the place of every row."""
    return x[:1].expand_as(x)


def is_of_position(fault: Fault) -> bool:
    """True if a fault concerns positions alone."""
    return fault.position is not None and not fault.empty and not fault.hides


FAULTS = (
    Fault("the position of a step is one too far", position=lambda at, _: at + 1),
    Fault("the position of a step is one too near", position=lambda at, _: at - 1),
    Fault("the position of each step is 0", position=lambda at, _: 0),
    Fault("the positions of steps begin again at 0 after the prompt", position=lambda at, prompt: at - prompt),
    Fault("the position stays at the first step's", position=lambda at, prompt: prompt),
    Fault(
        "position and slot are one too far: an empty slot after the prompt is seen",
        position=lambda at, _: at + 1,
        empty=lambda _: 1,
    ),
    Fault(
        "position and slot are one too near: the prompt's last token is written over",
        position=lambda at, _: at - 1,
        hides=lambda seen: seen.key == seen.prompt - 1,
    ),
    Fault(
        "position and slot do not advance: each step writes over the one before",
        position=lambda at, prompt: prompt,
        hides=before,
    ),
    Fault("the slot does not advance: each step writes over the one before", hides=before),
    Fault("the slot is one too near: the prompt's last token is written over", hides=lambda seen: seen.key == seen.prompt - 1),
    Fault("the slot is one too near: the prompt's last token is written over, and an empty slot is seen", late=(-1, -1)),
    Fault("the slot is one too far: an empty slot is seen, and not the last token", hides=itself, empty=lambda _: 1),
    Fault("a step does not see itself", hides=itself),
    Fault("a step sees the prompt alone", hides=of_steps),
    Fault("a step sees itself alone", hides=lambda seen: seen.key < seen.row),
    Fault("a step does not see the prompt", hides=lambda seen: seen.key < seen.prompt),
    Fault("a step does not see the first token", hides=lambda seen: seen.key == 0),
    Fault("the values of steps are not written", without_values=of_steps),
    Fault("the keys of steps are not written", without_keys=of_steps),
    Fault("keys and values of steps are not written", without_keys=of_steps, without_values=of_steps),
    Fault("the values of steps before are not kept", without_values=before),
    Fault("the keys of steps before are not kept", without_keys=before),
    Fault("keys and values of steps before are not kept", without_keys=before, without_values=before),
    Fault("the values of steps are written one slot late", late=(0, 1)),
    Fault("the values of steps are written one slot early", late=(0, -1)),
    Fault("the keys of steps are written one slot late", late=(1, 0)),
    Fault("the keys of steps are written one slot early", late=(-1, 0)),
    Fault("every layer has the keys of the first layer's cache", from_first=(0,)),
    Fault("every layer has the values of the first layer's cache", from_first=(1,)),
    Fault("every layer has the keys and values of the first layer's cache", from_first=(0, 1)),
    Fault("every row reads the first row's cache", cache=lambda held, new: (of_first_row(held), of_first_row(new))),
    Fault("every row reads the first row's cache, and its own token", cache=lambda held, new: (of_first_row(held), new)),
    Fault("every row is given the first row's ids", ids=lambda fed, step: fed[step][:1].repeat(len(fed[step]))),
    Fault("rows are given the ids of the row before", ids=lambda fed, step: np.roll(fed[step], 1)),
    Fault("rows are given the ids of the row after", ids=lambda fed, step: np.roll(fed[step], -1)),
    Fault("a step is given the ids of the step before", ids=lambda fed, step: fed[max(step - 1, 0)]),
    Fault("a step sees one empty slot", empty=lambda _: 1),
    Fault("steps have no score bias", bias=torch.zeros_like),
    Fault("the score bias of each step is that of the first token", bias=lambda bias: bias[..., :1, :].expand_as(bias)),
)
OF_PROMPT = (Fault("the prompt is read without the mask: its tokens see those after them", unmasked=True),)
"""Faults that are tried where the prompt's logits differ."""


RARE = (
    *(Fault(f"{each.says}, in rotations alone", angles=each.position) for each in FAULTS if is_of_position(each)),
    Fault("the keys of steps are not rotated", still=(1,)),
    Fault("the queries of steps are not rotated", still=(0,)),
    Fault("steps write values into the cache of keys", written=(1, 1)),
    Fault("steps write keys into the cache of values", written=(0, 0)),
    Fault("steps write keys and values into the caches of each other", written=(1, 0)),
)
"""Faults that are tried where none of `FAULTS` fits."""


def more(prompt: int, steps: int) -> Iterator[Fault]:
    """Yield faults in which a step sees all empty slots of a cache, for each capacity that the cache may have."""
    for n in range(1, MOST_EMPTY):
        capacity = prompt + steps + n
        yield Fault(f"a step sees all empty slots of a cache of {capacity}", empty=partial(left_of, capacity))


def left_of(capacity: int, tokens: int) -> int:
    """Number of empty slots of a cache."""
    return max(capacity - tokens, 0)
