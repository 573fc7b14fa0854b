"""Mutations of masks: those that a call is given, those that it makes, and masks where torch has none; and the sense of
booleans in torch's code, True where a key is seen or where it is hidden."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose import mutation
from jaxformer.parity.diagnose.attention_cores import FUSED, Core, cores
from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.computes import behind, gives, operand, with_named, with_operand
from jaxformer.parity.diagnose.mutation import DELETES, Change, Edit, Proposal, propose
from jaxformer.parity.diagnose.mutation import together as run_together
from jaxformer.parity.diagnose.other_masks import Others, adds_more, exchanged, mask_alone, masks_instead, said, windows
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Rewrite, same
from jaxformer.parity.numerics.float_masks import MASKED, allowed, kind_of
from jaxformer.parity.trace.call_sites import CALL, Site

EITHER = "or", "logical_or", "bitwise_or"
GIVES, MAKES = "applies the mask that it is given", "applies the mask of {0}"


def makes(args: dict[str, Any]) -> str:
    """Words for a mask that torch's code makes, or for none, where jax has one."""
    return "does not mask in {0}" if args.get("none") else MAKES


GIVEN = Change("masks.given", said, GIVES, cost=mutation.GIVEN), Change("masks.given_left_out", said, GIVES, cost=DELETES)
MADE = Change("masks.made", said, makes), Change("masks.made_left_out", said, makes, cost=DELETES)
TOGETHER = Change("masks.together", said, "applies the masks of {targets:and}, one after another")
ALONE = Change("masks.alone", "has 0 and -inf there alone: the bias is left out", "adds a bias and a mask in {0}")
SINK = Change("masks.sink", "leaves out the last column, the sink")


class Mask(NamedTuple):
    """Mask of torch's code, and the keys that it shows."""

    array: torch.Tensor
    seen: torch.Tensor
    """Boolean mask, True where a key is seen."""
    hides: bool | None
    """True for booleans that are True where a key is hidden, False for all other masks; None if the code does not tell."""
    opens: bool = False
    """True for booleans that show more keys than another mask (`|`), so that without them they are False everywhere."""

    def showing(self, seen: torch.Tensor) -> torch.Tensor:
        """Return a mask of the same type and sense that shows these keys."""
        return as_mask(self.array, ~seen if self.hides else seen)


def mask_of(array: torch.Tensor, operations: Sequence[Op]) -> Mask:
    """Build a mask from an array that these operations read."""
    keep = kept_keys(array)
    hides = hides_where_true(array, operations) if array.dtype == torch.bool else False
    opens = any(op.name in EITHER and any(same(x, array) for x in op.args) for op in operations)
    return Mask(array, ~keep if hides else keep, hides, opens)


def kept_keys(mask: torch.Tensor) -> torch.Tensor:
    """Boolean mask, True where a mask keeps a key; booleans are taken as they are."""
    return torch.from_numpy(np.asarray(allowed(mask.numpy()) if mask.is_floating_point() else mask.numpy()))


def as_mask(like: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Mask of the type of `like`: booleans, or 0 and the lowest number of `like` (-inf if none is negative)."""
    if not like.is_floating_point():
        return keep
    lowest = like.min() if like.min() < 0 else torch.tensor(-torch.inf, dtype=torch.float64)
    return torch.where(keep, 0.0, lowest).to(like.dtype)


def hides_where_true(mask: torch.Tensor, operations: Sequence[Op]) -> bool | None:
    """Return True if booleans are True where a key is hidden, by the operations that read them.

    If these do not tell, a mask of as many queries as keys hides where it is True if no query's own key is True; any other
    gives None.
    """
    told = by_readers(mask, operations)
    square = mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]
    if told is None and square and mask.any() and not mask.diagonal(dim1=-2, dim2=-1).any():
        return True
    return told


def by_readers(mask: torch.Tensor, operations: Sequence[Op]) -> bool | None:
    """Return the sense that the first operation tells that reads the mask, or a mask that is made of it."""
    readers = [i for i, op in enumerate(operations) if any(same(x, mask) for x in (*op.args, *op.kwargs.values()))]
    told = (by_reader(mask, operations[i], operations[i + 1 :]) for i in readers)
    return next((each for each in told if each is not None), None)


def by_reader(mask: torch.Tensor, op: Op, later: Sequence[Op]) -> bool | None:
    """Return the sense that one operation tells: by the very negative numbers that it gives, or by the readers of the switches
    (booleans, or numbers 0 and 1) that it makes of the mask."""
    output: Any = op.output
    if op.name == FUSED:
        return False
    if not isinstance(output, torch.Tensor):
        return None
    if output.dtype == torch.bool or bool(((output == 0) | (output == 1)).all()):
        told = by_readers(output, later)
        return told if told is None else told != is_opposite(mask, output)
    try:
        true = mask.bool().expand_as(output)
    except RuntimeError:  # an array of another shape
        return None
    low = output <= MASKED
    of_true, of_false = bool(low[true].all()), bool(low[~true].all())
    return of_true if of_true != of_false else None


def is_opposite(mask: torch.Tensor, switches: torch.Tensor) -> bool:
    """True if switches are off exactly where a mask's are on."""
    return same(mask.bool().squeeze(), (switches == 0).squeeze())


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each distinct mask, where it appears first: left out, then another; then of masks that are added with a
    bias, and of attention without a mask or with its kernel's."""
    given: list[torch.Tensor] = []
    inputs = [(i, array) for i, array in enumerate(replay.input_arrays) if is_new_mask(array, given)]
    tokens = {i: x for i, x in enumerate(replay.call_inputs) if x.ndim == 2 and x.dtype in (torch.int32, torch.int64)}
    others = partial(masks_instead, tokens=tokens)
    masked = [op for op in replay.operations if op.name == "softmax" and bool((op.args[0] <= MASKED).any())]
    made: list[torch.Tensor] = []
    new = [op for op in replay.operations if is_new_mask(op.output, made) and not passes_on(op, given)]
    of_keys = [op for op in replay.operations if is_of_keys(op.output) and op not in new]

    def computed(ops: list[Op], others: Callable[[torch.Tensor], Others]) -> Iterator[Proposal]:
        for op in ops:
            for other in otherwise(mask_of(op.output, replay.operations), others, MADE, softmax=bool(masked)):
                edits = other.placed(lambda mask, op=op: op.rewrite(gives(mask)), masked)
                yield propose(other.change, op.target, edits, **other.args)

    def passed() -> Iterator[Proposal]:
        is_inner = replay.owner not in (CALL, Site("", 0))
        for i, array in inputs:  # booleans that one module hands another are not compared
            own: dict[str, Any] = {"unseen": True} if array.dtype == torch.bool and is_inner else {}
            for other in otherwise(mask_of(array, replay.operations), others, GIVEN, softmax=bool(masked)):
                edits = other.placed(lambda mask, i=i: replay.given_inputs({i: mask}), masked)
                yield propose(other.change, f"input {i}", edits, **other.args, **own)

    for leaves_out in (True, False):
        every = chain(computed(new, others), passed())
        yield from (each for each in every if (each.mutation.change.cost == DELETES) == leaves_out)
    yield from computed(of_keys, exchanged)
    yield from together(replay, others)
    yield from (op.instead(ALONE, behind(mask_alone)) for op in replay.operations if adds_more(op.output))
    for op in replay.operations:
        yield from within(op)


class Other(NamedTuple):
    """Mask that may stand for torch's."""

    change: Change
    args: dict[str, Any]
    mask: torch.Tensor
    rows: torch.Tensor | None = None
    """True for rows of which all scores are made one number, beside the mask."""
    score: float = 0.0
    """Score of these rows."""

    def placed(self, edit: Callable[[torch.Tensor], Edit], masked: Sequence[Op]) -> Callable[[], Edit]:
        """Return the edits in which `edit` gives the mask; `masked` are softmaxes of masked scores."""
        if (rows := self.rows) is None:
            return partial(edit, self.mask)

        def filled(x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(rows[:, None] if rows.ndim == 3 < x.ndim else rows, self.score)

        return lambda: run_together(edit(self.mask), Rewrite({op.place: with_operand(0, filled) for op in masked}))


def otherwise(
    mask: Mask, others: Callable[[torch.Tensor], Others], changes: tuple[Change, Change], *, softmax: bool = False
) -> Iterator[Other]:
    """Masks of the type and sense of `mask`. Where a row that had keys has none left, it may show all keys, give equal weights,
    or NaN. `softmax`: True if the scores that are masked go to a softmax of the code's own."""
    if mask.hides is not False or mask.opens:
        yield Other(changes[1], {"how": "left_out", "true": "hidden", "empty": ""}, torch.zeros_like(mask.array))
    had_keys = mask.seen.any(-1, keepdim=True)
    for how, args, seen in others(mask.seen):
        if how == "left_out" and mask.hides:
            continue
        yield Other(changes[how == "left_out"], {"how": how, **args, "empty": ""}, mask.showing(seen))
        empty = ~seen.any(-1, keepdim=True)
        if not (had_keys & empty).any():
            continue
        shown, told = mask.showing(seen | empty), {"how": how, **args}
        yield Other(changes[0], told | {"empty": "shown"}, shown)
        if softmax:
            yield Other(changes[0], told | {"empty": "alike"}, shown, empty)
            yield Other(changes[0], told | {"empty": "nan"}, shown, empty, torch.nan)
        elif not mask.hides:
            zeros = torch.zeros(seen.shape, dtype=mask.array.dtype if mask.array.is_floating_point() else torch.float64)
            yield Other(changes[0], told | {"empty": "alike"}, zeros.masked_fill(~seen, torch.finfo(zeros.dtype).min))
            yield Other(changes[0], told | {"empty": "nan"}, zeros.masked_fill(~seen, -torch.inf).masked_fill(empty, torch.nan))


def together(replay: Replay, others: Callable[[torch.Tensor], Others]) -> Iterator[Proposal]:
    """Mutations of several masks that are applied to the same scores, as one: where each hides a key, to change one of them is
    not enough."""
    for core in cores(replay.listed):
        applied = [] if core.is_fused else [*masking(core, replay.listed)]
        if len(applied) < 2:
            continue
        as_given = {op.place: operand(i) for op, i in applied}
        targets, seen = tuple(op.target for op, _ in applied), core.softmax.args[0] > MASKED
        for how, args, other in others(seen):
            softmax = {core.softmax.place: with_operand(0, without(~other, -torch.inf))}
            yield propose(TOGETHER, targets, partial(Rewrite, as_given | softmax), how=how, **args, empty="")


def masking(core: Core, operations: Sequence[Op]) -> Iterator[tuple[Op, int]]:
    """Operations between the scores and the softmax that apply a mask, each with the index of its operand that is the
    scores."""
    scores = core.products[0].op.output
    for op in operations[operations.index(core.products[0].op) + 1 : operations.index(core.softmax)]:
        read = [i for i, x in enumerate(op.args) if same(x, scores)]
        if read and isinstance(op.output, torch.Tensor) and op.output.numel() == scores.numel():
            if op.output.shape == scores.shape and any(hides(x) for i, x in enumerate(op.args) if i != read[0]):
                yield op, read[0]
            scores = op.output


def hides(operand: Any) -> bool:
    """True for booleans, and for numbers that hide keys."""
    is_array = isinstance(operand, torch.Tensor) and operand.ndim > 1
    return is_array and (operand.dtype == torch.bool or bool((operand <= MASKED).any()))


def within(op: Op) -> Iterator[Proposal]:
    """Mutations of attention without a mask, or with one that its kernel makes (`is_causal`)."""
    if op.name == FUSED and (given := named(op.function, op.args, op.kwargs)).get("attn_mask") is None:
        rows, keys = given["query"].shape[-2], given["key"].shape[-2]
        causal = torch.ones(rows, keys, dtype=torch.bool).tril()
        if not given.get("is_causal"):
            yield op.instead(MADE[0], with_named(attn_mask=causal, is_causal=False), how="causal", empty="", none=True)
            return
        turned = ("exchanged", {}, causal.mT) if rows == keys else ("as_is", {}, causal)
        others = ("left_out", {}, torch.ones_like(causal)), *windows(causal), turned
        for other in otherwise(Mask(causal, causal, False), lambda _: others, MADE):
            yield op.instead(other.change, with_named(attn_mask=other.mask, is_causal=False), **other.args)
    elif op.name == "softmax" and op.output.ndim > 2 and op.output.shape[-2] > 1:
        rows, keys = op.output.shape[-2:]
        for how, first in (("causal", 0), *((("causal_last", keys - rows),) if keys > rows else ())):
            hidden = ~torch.ones(rows, keys, dtype=torch.bool).tril(first)
            yield op.instead(MADE[0], with_operand(0, without(hidden, -torch.inf)), how=how, empty="", none=True)
        if rows == keys - 1:
            yield op.instead(SINK, with_operand(0, without(torch.arange(keys) == rows, -torch.inf)))


def without(hidden: torch.Tensor, fill: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that fills the scores or weights of hidden keys."""
    return lambda x: x.masked_fill(hidden, fill)


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


def passes_on(op: Op, given: list[torch.Tensor]) -> bool:
    """True if an operation reads a given mask, and hides the same keys, all of them or the first: a mask of the code's own may
    hide them too."""

    def is_given(array: Any) -> bool:
        if not isinstance(array, torch.Tensor) or not array.ndim:
            return False
        own = kept_keys(array).squeeze()
        return any(same(own, keys[..., : array.shape[-1]]) for keys in given)

    return is_given(op.output) and any(is_given(array) for array in (*op.args, *op.kwargs.values()))


def is_of_keys(array: Any) -> bool:
    """True for booleans `... 1 S`, which hide the same keys from every query."""
    is_bool = isinstance(array, torch.Tensor) and array.dtype == torch.bool
    return is_bool and array.ndim > 2 and array.shape[-2] == 1 < array.shape[-1]
