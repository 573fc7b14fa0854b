"""What may be otherwise in masks: those that a call is given, those that it makes, and none where there could be one."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Altered, Operation, same
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.alterations.weighing import named_arguments
from jaxformer.parity.numerics.float_masks import allowed, fillers, kind_of

LOW = -1e4
"""Scores below this are hidden."""
MOST_KEYS = 33
"""Of windows that are tried where torch has none."""
FUSED = "scaled_dot_product_attention"


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Of each mask once, where it comes first."""
    seen: list[torch.Tensor] = []
    for i, array in enumerate(arrays_in(rerun.arguments)):
        if is_new_mask(array, seen):
            for says, other in masks_instead(array):
                filled = as_mask(array, other)
                yield Alteration("mask as given", f"mask {says}", lambda i=i, m=filled: rerun.given_inputs({i: m}))
                for more, m in for_empty_rows(array, other):
                    yield Alteration("mask as given", f"mask {says}{more}", lambda i=i, m=m: rerun.given_inputs({i: m}))
    for operation in rerun.operations:
        if is_new_mask(operation.output, seen):
            for says, other in masks_instead(operation.output):
                yield instead(operation, f"mask {says}", partial(constant, as_mask(operation.output, other)))
                for more, m in for_empty_rows(operation.output, other):
                    yield instead(operation, f"mask {says}{more}", partial(constant, m))
    for operation in rerun.operations:
        if isinstance(operation.output, torch.Tensor) and adds_more(operation.output):
            yield instead(operation, "has its mask alone", lambda f, a, k, n: mask_alone(f(*a, **k)))
    for operation in rerun.operations:
        yield from within(operation)
    yield from behind_softmax([each for each in rerun.operations if isinstance(each.output, torch.Tensor)])


def behind_softmax(operations: list[Operation]) -> Iterator[Alteration]:
    """Scores that are hidden before the softmax: weights that are 0 behind it, of all scores."""
    for mask, softmax in itertools.product(operations, operations):
        scores = next(iter(mask.args), None)
        if softmax.name != "softmax" or not isinstance(scores, torch.Tensor) or scores.shape != softmax.output.shape:
            continue
        if not same(mask.output, softmax.args[0]) or not (hidden := (mask.output < LOW) & (scores > LOW)).any():
            continue
        altered = {mask.place: lambda f, a, k, n: a[0], softmax.place: partial(weights_without, hidden)}
        yield Alteration(f"computes {mask.source}", "sets weights to 0 behind the softmax", partial(Altered, altered))


def weights_without(hidden: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The others are as they are."""
    return function(*args, **kwargs).masked_fill(hidden, 0.0)


def masks_instead(array: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Left out first, whether booleans are true where a key is seen, or where it is hidden."""
    keep = kept_keys(array)
    if array.dtype == torch.bool:
        yield "left out", torch.zeros_like(keep)
    yield from other_masks(keep)


def adds_more(array: torch.Tensor) -> bool:
    """Whether it hides keys, and adds other numbers where they are seen."""
    hidden = fillers(array.numpy(), infinite=True) if array.is_floating_point() else None
    return hidden is not None and bool(array.numpy()[~hidden].any())


def mask_alone(array: torch.Tensor) -> torch.Tensor:
    """With 0 wherever a key is seen."""
    return torch.where(torch.from_numpy(np.asarray(fillers(array.numpy(), infinite=True))), array, 0.0)


def is_new_mask(array: Any, seen: list[torch.Tensor]) -> bool:
    """Whether it hides keys, and none of `seen` does the same; it is seen then."""
    if not isinstance(array, torch.Tensor) or array.ndim < 2 or array.shape[-1] < 2:
        return False
    if array.dtype != torch.bool and not (array.is_floating_point() and kind_of(array.numpy()) in ("added", "zeros")):
        return False
    keys = kept_keys(array).squeeze()
    if any(keys.shape == other.shape and torch.equal(keys, other) for other in seen):
        return False
    seen.append(keys)
    return True


def kept_keys(mask: torch.Tensor) -> torch.Tensor:
    """True where a mask keeps."""
    return torch.from_numpy(np.asarray(allowed(mask.numpy()) if mask.is_floating_point() else mask.numpy()))


def as_mask(like: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """A mask of the same type and shape, where that fits."""
    if not like.is_floating_point():
        return keep
    lowest = like.min() if like.min() < 0 else torch.tensor(-torch.inf, dtype=torch.float64)
    return torch.where(keep, 0.0, lowest).to(like.dtype)


def for_empty_rows(like: torch.Tensor, keep: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Masks for a row that had keys and has none: of the lowest number, and of what is no number."""
    empty = ~keep.any(-1, keepdim=True)
    if (kept_keys(like).any(-1, keepdim=True) & empty).any():
        kind = like.dtype if like.is_floating_point() else torch.float64
        mask = torch.zeros(keep.shape, dtype=kind)
        yield ", rows without keys see all alike", mask.masked_fill(~keep, torch.finfo(kind).min)
        yield ", rows without keys give NaN", mask.masked_fill(~keep, -torch.inf).masked_fill(empty, torch.nan)


def constant(value: Any, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Whatever was computed."""
    return value


def within(operation: Operation) -> Iterator[Alteration]:
    """Of attention without a mask, or with one that its kernel makes."""
    if operation.name == FUSED and (named := named_arguments(operation.args, operation.kwargs)).get("attn_mask") is None:
        rows, keys = (each.shape[-2] for each in operation.args[:2])
        causal = torch.ones(rows, keys, dtype=torch.bool).tril()
        if not named.get("is_causal"):
            yield instead(operation, "mask causal", partial(under, causal))
            return
        turned = ("of queries for that of keys", causal.mT) if rows == keys else ("as it is", causal)
        for says, other in (("left out", torch.ones_like(causal)), *windows(causal), turned):
            yield instead(operation, f"mask {says}", partial(under, other))
            for more, m in for_empty_rows(causal, other):
                yield instead(operation, f"mask {says}{more}", partial(under, m))
    elif operation.name == "softmax" and operation.output.ndim > 2 and operation.output.shape[-2] > 1:
        rows, keys = operation.output.shape[-2:]
        for says, first in (("mask causal", 0), *((("mask causal, of the last queries", keys - rows),) if keys > rows else ())):
            hidden = ~torch.ones(rows, keys, dtype=torch.bool).tril(first)
            yield instead(operation, says, partial(without_keys, hidden))
        if rows == keys - 1:
            yield instead(operation, "leaves out the last, as a sink is", partial(without_keys, torch.arange(keys) == rows))


def under(mask: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Fused attention under another mask."""
    return function(**(named_arguments(args, kwargs) | {"attn_mask": mask, "is_causal": False}))


def without_keys(hidden: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """A softmax over the others."""
    return function(args[0].masked_fill(hidden, -torch.inf), *args[1:], **kwargs)


def other_masks(keep: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The ways in which masks go wrong, of a mask that is True where a key is seen."""
    yield "left out", torch.ones_like(keep)
    yield "inverted", ~keep
    if keep.ndim < 2 or keep.shape[-1] < 2:
        return
    if keep.shape[-1] == keep.shape[-2]:
        yield "of queries for that of keys", keep.transpose(-1, -2)
    if keep.shape[-2] > 1:
        yield from windows(keep)
    if len(keep) > 1:
        yield "as if of the row before", keep.roll(1, 0)
        yield "as if of the row behind", keep.roll(-1, 0)
        yield "as if of the first row", keep[:1].expand_as(keep)
    if keep.shape[-2] == 1:
        yield "one key longer", keep | keep.roll(1, -1)
        yield "one key shorter", keep & keep.roll(1, -1)


def windows(keep: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Of a mask of valid keys in a window around each query: other windows, and other keys."""
    (rows, length), keys = keep.shape[-2:], keep.any(-2, keepdim=True)
    apart = torch.arange(rows)[:, None] - torch.arange(length)
    seen = apart[keep.reshape(-1, rows, length).any(0)]
    if not len(seen):
        return
    back, ahead = int(seen.max()), -int(seen.min())

    def window(back: int, ahead: int, keys: torch.Tensor = keys) -> torch.Tensor:
        near = (apart <= back) & (apart >= -ahead)
        return (keys & near).expand_as(keep) & keep.any(-1, keepdim=True)

    if not torch.equal(window(back, ahead), keep):
        return
    if back == length - 1:
        for n in range(1, min(length, MOST_KEYS)):
            yield f"with a window of {n} keys for none", window(n - 1, ahead)
    if back < length - 1:
        yield f"with a window of {back + 2} keys for {back + 1}", window(back + 1, ahead)
        yield f"with a window of {back} keys for {back + 1}", window(back - 1, ahead)
        yield "without its window", window(length, ahead)
        yield "without its window and its causal part", window(length, length)
    if ahead < length - 1:
        yield "with one key more ahead", window(back, ahead + 1)
        fewer = window(back, ahead - 1)
        yield "with one key fewer ahead", fewer
        yield "with one key fewer ahead, where there is another", fewer | (keep & ~fewer.any(-1, keepdim=True))
        yield "with one key fewer ahead, but in the first row", fewer | (keep & (torch.arange(rows) == 0)[:, None])
        yield "without its causal part", window(back, length)
    if not keys.all():
        if rows == length:
            yield "of padded queries too", keep & keys.mT
            yield "with its padding of queries for that of keys", window(back, ahead, keys.mT)
        yield "without its padding", ((apart <= back) & (apart >= -ahead)).expand_as(keep)
        yield "without its padding, but in rows without keys", window(back, ahead, torch.ones_like(keys))
        yield "with its padding inverted", window(back, ahead, ~keys)
