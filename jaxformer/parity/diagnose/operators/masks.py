"""Mutations of masks: those that a call is given, those that it makes, and masks where torch has none."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose.attention_cores import FUSED
from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.mutation import DELETES, Change, Proposal, propose
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Rewrite, same
from jaxformer.parity.numerics.float_masks import allowed, fillers, kind_of
from jaxformer.parity.trace.call_records import arrays_in

LOW = -1e4
"""Scores below this count as masked."""
MOST_KEYS = 33
"""Sliding windows of fewer keys than this are tried where torch has none."""
Others = Iterable[tuple[str, Mapping[str, int | str], torch.Tensor]]
"""Key of `OTHERS`, arguments of its words, and the mask: True where a key is seen."""
OTHERS = {
    "left_out": "does not apply it",
    "inverted": "applies it inverted",
    "exchanged": "applies it transposed: queries and keys exchanged",
    "causal": "masks causally too (`tril`)",
    "causal_last": "masks causally too, as of the last queries (`tril(k=keys - queries)`)",
    "as_is": "applies it as it is",
    "row": "applies that of the row {row}",
    "first_row": "applies that of the first row to all rows",
    "any_row": "applies one for all rows: a key is seen where any row has it",
    "every_row": "applies one for all rows: a key is seen where every row has it",
    "key": "applies it one key {by}",
    "window": "has a window of {keys} keys for {was}",
    "gap": "hides a query's own key, and sees {was}",
    "moved": "has the window one key further {by}",
    "no_window": "leaves out the window",
    "padding_only": "leaves out the causal part and the window",
    "ahead": "lets every query see one key {by} ahead",
    "fewer_where_others": "hides the query's own key, where there is another (`tril(k=-1)`)",
    "fewer_but_first": "hides the query's own key, but in the first row (`tril(k=-1)`)",
    "not_causal": "leaves out the causal part",
    "padded_queries": "masks padded queries too",
    "padding_exchanged": "masks padded queries in place of padded keys",
    "no_padding": "leaves out the padding",
    "padding_in_empty": "leaves out the padding, but in rows without keys",
    "padding_inverted": "has the padding inverted",
}
EMPTY = {
    "": "",
    "alike": "; where no key is left, it attends to all alike",
    "nan": "; where no key is left, it gives NaN",
}
"""Words for what a row without keys gives, by the argument `empty`."""
GIVES, MAKES = "applies the mask that it is given", "applies the mask of {0}"


def said(args: dict[str, Any]) -> str:
    """Words for jax's mask."""
    return OTHERS["gap" if args.get("keys", 1) < 1 else args["how"]] + EMPTY[args["empty"]]


def makes(args: dict[str, Any]) -> str:
    """Words for a mask that torch's code makes, or for none, where jax has one."""
    return "does not mask in {0}" if args.get("none") else MAKES


GIVEN = Change("masks.given", said, GIVES), Change("masks.given_left_out", said, GIVES, cost=DELETES)
MADE = Change("masks.made", said, makes), Change("masks.made_left_out", said, makes, cost=DELETES)
ALONE = Change("masks.alone", "has 0 and -inf there alone: the bias is left out", "adds a bias and a mask in {0}")
BEHIND = Change("masks.behind", "sets weights to 0 after the softmax", "masks scores before the softmax by {0}")
SINK = Change("masks.sink", "leaves out the last column, the sink")


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each distinct mask, where it appears first; then of masks that are added with a bias, of attention without
    a mask or with its kernel's, and of masks before the softmax."""
    seen: list[torch.Tensor] = []
    for i, array in enumerate(arrays_in(replay.arguments)):
        if is_new_mask(array, seen):
            for change, args, mask in otherwise(array, masks_instead(array), GIVEN):
                yield propose(change, f"input {i}", partial(replay.given_inputs, {i: mask}), **args)
    for op in replay.operations:
        if is_new_mask(op.output, seen):
            for change, args, mask in otherwise(op.output, masks_instead(op.output), MADE):
                yield op.instead(change, partial(constant, mask), **args)
        elif is_of_keys(op.output):
            for change, args, mask in otherwise(op.output, exchanged(op.output), MADE):
                yield op.instead(change, partial(constant, mask), **args)
    yield from (op.instead(ALONE, mask_alone) for op in replay.operations if adds_more(op.output))
    for op in replay.operations:
        yield from within(op)
    yield from behind_softmax([op for op in replay.operations if isinstance(op.output, torch.Tensor)])


def otherwise(
    mask: torch.Tensor, others: Others, changes: tuple[Change, Change]
) -> Iterator[tuple[Change, dict[str, Any], torch.Tensor]]:
    """Masks of the type of `mask`; where a row that had keys has none left, also masks that give equal weights or NaN there."""
    had_keys = kept_keys(mask).any(-1, keepdim=True)
    for how, args, keep in others:
        yield changes[how == "left_out"], {"how": how, **args, "empty": ""}, as_mask(mask, keep)
        empty = ~keep.any(-1, keepdim=True)
        if (had_keys & empty).any():
            kind = mask.dtype if mask.is_floating_point() else torch.float64
            zeros = torch.zeros(keep.shape, dtype=kind)
            alike = zeros.masked_fill(~keep, torch.finfo(kind).min)
            nan = zeros.masked_fill(~keep, -torch.inf).masked_fill(empty, torch.nan)
            for which, other in (("alike", alike), ("nan", nan)):
                yield changes[0], {"how": how, **args, "empty": which}, other


def behind_softmax(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations that set weights to 0 after a softmax of all scores, in place of masking scores before it."""
    softmaxes = [op for op in operations if op.name == "softmax"]
    for mask in operations:
        scores: Any = next(iter(mask.args), None)
        for softmax in softmaxes if isinstance(scores, torch.Tensor) else ():
            if scores.shape != softmax.output.shape or not same(mask.output, softmax.args[0]):
                continue
            if (hidden := (mask.output < LOW) & (scores > LOW)).any():
                altered = {mask.place: lambda f, a, k, n: a[0], softmax.place: partial(weights_without, hidden)}
                yield propose(BEHIND, (mask.target, softmax.target), partial(Rewrite, altered))


def within(op: Op) -> Iterator[Proposal]:
    """Mutations of attention without a mask, or with one that its kernel makes (`is_causal`)."""
    if op.name == FUSED and (given := named(op.function, op.args, op.kwargs)).get("attn_mask") is None:
        rows, keys = given["query"].shape[-2], given["key"].shape[-2]
        causal = torch.ones(rows, keys, dtype=torch.bool).tril()
        if not given.get("is_causal"):
            yield op.instead(MADE[0], partial(under, causal), how="causal", empty="", none=True)
            return
        turned = ("exchanged", {}, causal.mT) if rows == keys else ("as_is", {}, causal)
        others = ("left_out", {}, torch.ones_like(causal)), *windows(causal), turned
        for change, args, mask in otherwise(causal, others, MADE):
            yield op.instead(change, partial(under, mask), **args)
    elif op.name == "softmax" and op.output.ndim > 2 and op.output.shape[-2] > 1:
        rows, keys = op.output.shape[-2:]
        for how, first in (("causal", 0), *((("causal_last", keys - rows),) if keys > rows else ())):
            hidden = ~torch.ones(rows, keys, dtype=torch.bool).tril(first)
            yield op.instead(MADE[0], partial(without_keys, hidden), how=how, empty="", none=True)
        if rows == keys - 1:
            yield op.instead(SINK, partial(without_keys, torch.arange(keys) == rows))


def weights_without(hidden: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute weights, and set those of hidden keys to 0; the others stay as they are."""
    return function(*args, **kwargs).masked_fill(hidden, 0.0)


def without_keys(hidden: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute a softmax over the keys that are not hidden."""
    return function(args[0].masked_fill(hidden, -torch.inf), *args[1:], **kwargs)


def under(mask: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute fused attention with another mask."""
    return function(**(named(function, args, kwargs) | {"attn_mask": mask, "is_causal": False}))


def constant(mask: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Return the mask, whatever the operation is given."""
    return mask


def mask_alone(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute a mask without its bias: 0 wherever a key is seen."""
    array = function(*args, **kwargs)
    return torch.where(torch.from_numpy(np.asarray(fillers(array.numpy(), infinite=True))), array, 0.0)


def adds_more(array: Any) -> bool:
    """True if an array hides keys, and adds other numbers than 0 where they are seen (a bias)."""
    is_float = isinstance(array, torch.Tensor) and array.is_floating_point()
    hidden = fillers(array.numpy(), infinite=True) if is_float else None
    return hidden is not None and bool(array.numpy()[~hidden].any())


def is_new_mask(array: Any, seen: list[torch.Tensor]) -> bool:
    """True if an array is a mask that hides other keys than those of `seen`; its keys are then added to `seen`."""
    if not isinstance(array, torch.Tensor) or array.ndim < 2 or array.shape[-1] < 2:
        return False
    if array.dtype != torch.bool and not (array.is_floating_point() and kind_of(array.numpy()) in ("added", "zeros")):
        return False
    keys = kept_keys(array).squeeze()
    if any(same(keys, other) for other in seen):
        return False
    seen.append(keys)
    return True


def is_of_keys(array: Any) -> bool:
    """True for booleans `... 1 S`, which hide the same keys from every query."""
    return (
        isinstance(array, torch.Tensor)
        and array.dtype == torch.bool
        and array.ndim > 2
        and array.shape[-2] == 1 < array.shape[-1]
    )


def exchanged(mask: torch.Tensor) -> Others:
    """Mask with queries and keys exchanged."""
    yield "exchanged", {}, mask.mT


def kept_keys(mask: torch.Tensor) -> torch.Tensor:
    """Boolean mask, True where a mask keeps a key; booleans are taken as they are."""
    return torch.from_numpy(np.asarray(allowed(mask.numpy()) if mask.is_floating_point() else mask.numpy()))


def as_mask(like: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Mask of the type of `like`: booleans, or 0 and the lowest number of `like` (-inf if none is negative)."""
    if not like.is_floating_point():
        return keep
    lowest = like.min() if like.min() < 0 else torch.tensor(-torch.inf, dtype=torch.float64)
    return torch.where(keep, 0.0, lowest).to(like.dtype)


def masks_instead(array: torch.Tensor) -> Others:
    """Masks to try in place of one. The first leave it out, in both senses: booleans may be True where a key is seen, or where
    it is hidden."""
    keep = kept_keys(array)
    if array.dtype == torch.bool:
        yield "left_out", {"true": "hidden"}, torch.zeros_like(keep)
    yield "left_out", {}, torch.ones_like(keep)
    yield "inverted", {}, ~keep
    if keep.shape[-2] in (1, keep.shape[-1]):
        yield from exchanged(keep)
    if keep.shape[-2] > 1:
        yield from windows(keep)
    if len(keep) > 1:
        yield "row", {"row": "before"}, keep.roll(1, 0)
        yield "row", {"row": "after"}, keep.roll(-1, 0)
        yield "first_row", {}, keep[:1].expand_as(keep)
        yield "any_row", {}, keep.any(0, keepdim=True).expand_as(keep)
        yield "every_row", {}, keep.all(0, keepdim=True).expand_as(keep)
    if keep.shape[-2] == 1:
        yield "key", {"by": "longer"}, keep | keep.roll(1, -1)
        yield "key", {"by": "shorter"}, keep & keep.roll(1, -1)


def windows(keep: torch.Tensor) -> Others:
    """Masks to try in place of one that shows the valid keys in a sliding window around each query (causal ones included):
    other windows, and other keys."""
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
            yield "window", {"keys": n, "was": "none"}, window(n - 1, ahead)
    if back < length - 1:
        yield "window", {"keys": back + 2, "was": back + 1}, window(back + 1, ahead)
        yield "window", {"keys": back, "was": back + 1}, window(back - 1, ahead)
        yield "moved", {"by": "ahead"}, window(back - 1, ahead + 1)
        yield "moved", {"by": "back"}, window(back + 1, ahead - 1)
        yield "no_window", {}, window(length, ahead)
        yield "padding_only", {}, window(length, length)
    if ahead < length - 1:
        yield "ahead", {"by": "more"}, window(back, ahead + 1)
        fewer = window(back, ahead - 1)
        yield "ahead", {"by": "fewer"}, fewer
        yield "fewer_where_others", {}, fewer | (keep & ~fewer.any(-1, keepdim=True))
        yield "fewer_but_first", {}, fewer | (keep & (torch.arange(rows) == 0)[:, None])
        yield "not_causal", {}, window(back, length)
    if not keys.all():
        if rows == length:
            yield "padded_queries", {}, keep & keys.mT
            yield "padding_exchanged", {}, window(back, ahead, keys.mT)
        yield "no_padding", {}, ((apart <= back) & (apart >= -ahead)).expand_as(keep)
        yield "padding_in_empty", {}, window(back, ahead, torch.ones_like(keys))
        yield "padding_inverted", {}, window(back, ahead, ~keys)
