"""Masks that jax's code may have in place of torch's, by the keys that they show: other windows, rows and padding."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from jaxformer.parity.numerics.float_masks import fillers

MOST_KEYS, MOST_MORE, FEWEST, MOST_SINKS, MOST_IDS = 33, 13, 5, 4, 8
"""Bounds, in keys, of sliding windows that are tried where torch has none and of moves of their edges, and of what rows of a
padding mask are longer or shorter; the least number of keys of such rows: of fewer, any booleans look like them; the most
keys at the beginning that windows may show beside their own, and ids that may stand for padding."""
Others = Iterable[tuple[str, Mapping[str, Any], torch.Tensor]]
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
    "ids": "hides the keys whose id is {id}, in input {input} of the call",
    "first_key": "hides the first key",
    "length": "has its mask true at {number} {by} in each row",
    "window": "has a window of {keys} keys for {was}",
    "moved": "has the window one key further {by}",
    "no_window": "leaves out the window",
    "blocks": "has blocks of {keys} keys for the window: a query sees those of its own block",
    "blocks_before": "has blocks of {keys} keys for the window: a query sees those of its own block and of the one before",
    "sinks": "shows {number} at the beginning in every window too (attention sinks)",
    "two_sided": "has the window ahead of a query too: |i - j| <= {keys}",
    "width": "has |i - j| <= {keys} for {was}: keys so near are seen, behind and ahead",
    "padding_only": "leaves out the causal part and the window",
    "ahead": "lets every query see {number} {by} ahead",
    "behind": "lets every query see {number} {by} behind",
    "fewer": "hides the query's own key too (`tril(k=-1)`)",
    "all_ahead": "lets every query see all keys ahead",
    "all_behind": "lets every query see all keys behind",
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
    "shown": "; where no key is left, it attends as without a mask",
    "alike": "; where no key is left, it attends to all alike",
    "nan": "; where no key is left, it gives NaN",
}
"""Words for what a row without keys gives, by the argument `empty`."""
UNSEEN = " (or is given such a mask: masks of booleans are not compared)"
"""Words for an input of booleans, which jax's module has from jax's own code: True may mean the opposite there."""


def said(args: dict[str, Any]) -> str:
    """Words for jax's mask."""
    keys = args.get("keys", 1)
    words = OTHERS[args["how"]].replace("{number}", "one key" if keys == 1 else "{keys} keys")
    return words + EMPTY[args["empty"]] + UNSEEN * args.get("unseen", False)


def masks_instead(keep: torch.Tensor, tokens: Mapping[int, torch.Tensor] = MappingProxyType({})) -> Others:
    """Masks to try in place of one, True where a key is seen. `tokens`: ids `B S` among the inputs of the call, by their
    numbers."""
    yield "left_out", {}, torch.ones_like(keep)
    yield "inverted", {}, ~keep
    if keep.shape[-2] in (1, keep.shape[-1]):
        yield from exchanged(keep)
    sliding = [*windows(keep)] if keep.shape[-2] > 1 else []
    yield from sliding
    if len(keep) > 1 and (keep.ndim > 2 or not sliding):  # rows of a batch, not queries
        yield "row", {"row": "before"}, keep.roll(1, 0)
        yield "row", {"row": "after"}, keep.roll(-1, 0)
        yield "first_row", {}, keep[:1].expand_as(keep)
        yield "any_row", {}, keep.any(0, keepdim=True).expand_as(keep)
        yield "every_row", {}, keep.all(0, keepdim=True).expand_as(keep)
    yield from other_lengths(keep)
    yield from by_ids(keep, tokens)


def by_ids(keep: torch.Tensor, tokens: Mapping[int, torch.Tensor]) -> Others:
    """Masks that hide the keys of one id, or the first key, in place of those that torch's hides for all queries."""
    (rows, length), first = keep.shape[-2:], torch.arange(keep.shape[-1]) == 0
    shown = keep.reshape(-1, rows, length).any(0)
    yield "first_key", {}, (shown & ~first).expand_as(keep)
    for number, ids in tokens.items():
        if keep.ndim > 2 and len(ids) == len(keep) and ids.shape[1] <= length:
            for id_ in ids.unique()[:MOST_IDS].tolist():
                seen = functional.pad(ids != id_, (0, length - ids.shape[1]), value=True)  # a static cache is longer
                yield "ids", {"id": id_, "input": number}, shown & seen.reshape(len(keep), *[1] * (keep.ndim - 2), length)


def exchanged(mask: torch.Tensor) -> Others:
    """Mask with queries and keys exchanged."""
    yield "exchanged", {}, mask.mT


def other_lengths(keep: torch.Tensor) -> Others:
    """Masks to try in place of one that shows the keys at one end of a row: longer and shorter rows."""
    if (places := row_ends(keep)) is not None:
        for n in range(1, min(MOST_MORE, keep.shape[-1])):
            for by, moved in (("more", n), ("fewer", -n)):
                yield "length", {"by": by, "keys": n}, (places < keep.sum(-1, keepdim=True) + moved).expand_as(keep)


def row_ends(keep: torch.Tensor) -> torch.Tensor | None:
    """Return the places of the keys, from the end of a row where those that every query is shown are; None for other masks.

    Rows of two axes are those of a batch, unless there are as many as keys.
    """
    alike, keys = keep.reshape(len(keep), -1, keep.shape[-1]), keep.shape[-1]
    if len(keep) < 2 or keys < FEWEST or keep.all():
        return None
    steps = alike[:, 0].int().diff()
    if (alike != alike[:, :1]).any() or steps.min() * steps.max() < 0 or (keep.ndim == 2 and len(keep) == keys):
        return None
    return torch.arange(keys).flip(0) if steps.max() > 0 else torch.arange(keys)


class Window(NamedTuple):
    """Keys that each query sees: from `back` behind it to `ahead` of it."""

    back: int
    ahead: int


def windows(keep: torch.Tensor) -> Others:
    """Masks to try in place of one that shows the valid keys in a sliding window around each query (causal ones included):
    other windows, and other keys."""
    (rows, length), keys = keep.shape[-2:], keep.any(-2, keepdim=True)
    apart = torch.arange(rows)[:, None] - torch.arange(length)
    seen = apart[keep.reshape(-1, rows, length).any(0)]
    if not len(seen):
        return
    own, most = Window(int(seen.max()), -int(seen.min())), Window(rows - 1, length - 1)

    def masked(window: Window, keys: torch.Tensor = keys) -> torch.Tensor:
        near = (apart <= window.back) & (apart >= -window.ahead)
        return (keys & near).expand_as(keep) & keep.any(-1, keepdim=True)

    if not torch.equal(masked(own), keep):
        return
    tried = {own}
    for how, args, other in other_windows(own, most):
        if (window := Window(min(other.back, most.back), min(other.ahead, most.ahead))) not in tried:
            tried.add(window)
            yield how, args, masked(window)
    if 0 <= own.back < most.back:
        for how, args, near in beside_windows(own, apart):
            yield how, args, (keys & near).expand_as(keep) & keep.any(-1, keepdim=True)
    if own.ahead < most.ahead:
        fewer = masked(Window(own.back, own.ahead - 1))
        yield "fewer_where_others", {}, fewer | (keep & ~fewer.any(-1, keepdim=True))
        yield "fewer_but_first", {}, fewer | (keep & (torch.arange(rows) == 0)[:, None])
    if not keys.all():
        if rows == length:
            yield "padded_queries", {}, keep & keys.mT
            yield "padding_exchanged", {}, masked(own, keys.mT)
        yield "no_padding", {}, ((apart <= own.back) & (apart >= -own.ahead)).expand_as(keep)
        yield "padding_in_empty", {}, masked(own, torch.ones_like(keys))
        yield "padding_inverted", {}, masked(own, ~keys)


def beside_windows(own: Window, apart: torch.Tensor) -> Others:
    """Keys `T S` that each query sees where windows are no sliding ones: blocks, and windows with the first keys beside them.
    `apart`: distances of queries from keys."""
    query, key = apart[:, :1], -apart[:1]
    allowed = apart >= (0 if own.ahead == 0 else -len(apart))
    size = own.back + 1
    behind = query // size - key // size
    yield "blocks", {"keys": size}, allowed & (behind == 0)
    yield "blocks_before", {"keys": size}, allowed & (behind >= 0) & (behind <= 1)
    for n in range(1, MOST_SINKS + 1):
        yield "sinks", {"keys": n}, ((apart <= own.back) & (apart >= -own.ahead)) | (allowed & (key < n))


def other_windows(own: Window, most: Window) -> Iterator[tuple[str, Mapping[str, Any], Window]]:
    """Windows to try in place of one; `most` is the largest. Plain ones come first, then edges that are moved further."""
    (back, ahead), is_causal = own, own.ahead in (0, most.ahead - most.back)  # a static cache is longer than what it holds
    of_keys = is_causal or (ahead == most.ahead and back > 0)  # a window's own part, `distance < 5`, does not look ahead
    keys = back + 1 + (ahead if is_causal else 0)
    if back < most.back:
        if ahead == 0:
            yield "two_sided", {"keys": back}, Window(back, back)
        if ahead < most.ahead:
            for further, by in ((1, "ahead"), (-1, "back")):
                yield "moved", {"by": by}, Window(back - further, ahead + further)
        yield "no_window" if is_causal else "all_behind", {}, Window(most.back, ahead)
        yield "padding_only", {}, most
    if ahead < most.ahead:
        if back == ahead:
            yield "causal", {}, Window(back, 0)
        yield "not_causal" if is_causal else "all_ahead", {}, Window(back, most.ahead)
    for n in range(1, MOST_KEYS):
        several = {"keys": n} if n > 1 else {}
        for by, moved in (("more", n), ("fewer", -n)):
            if back == ahead < most.back and back + moved >= 0:
                yield "width", {"keys": back + moved, "was": back}, Window(back + moved, ahead + moved)
            if back < most.back and back + moved >= -ahead:
                args = {"keys": keys + moved, "was": keys} if of_keys else {"by": by, **several}
                yield "window" if of_keys else "behind", args, Window(back + moved, ahead)
            if ahead < most.ahead and ahead + moved >= -back:
                is_own = (ahead, moved) == (0, -1)
                yield "fewer" if is_own else "ahead", {} if is_own else {"by": by, **several}, Window(back, ahead + moved)
        if back == most.back and ahead < most.ahead:
            yield "window", {"keys": n, "was": "none"}, Window(n - 1 - ahead, ahead)


def mask_alone(array: torch.Tensor) -> torch.Tensor:
    """Compute a mask without its bias: 0 wherever a key is seen."""
    return torch.where(torch.from_numpy(np.asarray(fillers(array.numpy(), infinite=True))), array, 0.0)


def adds_more(array: Any) -> bool:
    """True if an array hides keys, and adds other numbers than 0 where they are seen (a bias)."""
    is_float = isinstance(array, torch.Tensor) and array.is_floating_point()
    hidden = fillers(array.numpy(), infinite=True) if is_float else None
    return hidden is not None and bool(array.numpy()[~hidden].any())
