"""Mutations of means in a loss: which entries count, and what their sum is divided by."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.computes import Compute
from jaxformer.parity.diagnose.mutation import Change, Mutation, Proposal, Target, grouped, propose
from jaxformer.parity.diagnose.reductions import At, Mean, Reduce, in_their_runs, is_mask, means_in, row_sums_in, spread
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Rewrite

FORMS = {
    "mean": "takes the mean{which}",
    "sum": "takes the sum{which}, without a mean",
    "entries": "divides the sum{which} by the number of all entries, {n}",
    "rows": "divides the sum{which} by the number of rows, {rows}",
    "rows_first": "takes the mean of each of {rows} rows first, then over rows{which}",
    "columns_first": "takes the mean of each of {columns} columns first, then over columns{which}",
    "last_summed": "sums over the last axis, and takes the mean over the others{which}",
}
"""Ways to make one number of entries."""
WHICH = {
    "own": "",
    "every": " of all {all} entries (without the mask)",
    "masked": " of the entries that {mask} keeps",
    "without_first": " without the first entry of each of {of} rows",
    "without_last": " without the last entry of each of {of} rows",
    "later": " with the mask one later, 0 at the beginning of each row",
    "earlier": " with the mask one earlier, 0 at the end of each row",
    "rolled_later": " with the mask one later, rolled around",
    "rolled_earlier": " with the mask one earlier, rolled around",
    "contrary": " of the entries that the mask hides",
}
"""Entries that count."""
HOW = {f"{form} {which}": FORMS[form].replace("{which}", WHICH[which]) for form in FORMS for which in WHICH}
HOW["entries every"] = HOW["mean every"]
OTHER = Change("means.other", HOW, "computes {targets:and}")
FACTORS = {f"{form} own" for form in ("sum", "entries", "rows")}
"""Other means that amount to a factor: another number in the code may be the same."""
OF_ROWS = Change("means.of_rows", "divides each sum by the number of entries that its mask keeps", "computes {targets:and}")
MOST_MASKS, MOST_ROWS = 4, 64
MOST_ENTRIES = 2**20
"""Largest number of entries of which some are chosen."""


def is_factor(mutation: Mutation) -> bool:
    """True if another mean amounts to a factor."""
    return mutation.change == OTHER and dict(mutation.args)["how"] in FACTORS


class Form(NamedTuple):
    """Way to make one number of entries: a key of `FORMS`, the numbers in its words, and the function."""

    how: str
    words: dict[str, Any]
    reduce: Reduce


class Kept(NamedTuple):
    """Choice of entries: a key of `WHICH`, what its words need, and the weight of each entry."""

    which: str
    words: dict[str, Any]
    kept: torch.Tensor


class Other(NamedTuple):
    """Other mean: the arguments of the mutation, and what the runs of operations compute instead."""

    words: dict[str, Any]
    computes: Callable[[], Mapping[At, Compute]]


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of means in the code of a loss: of each; of several by one mask, alike, those of one line and all; of sums of
    rows, which become means."""
    if replay.wanted.size > 1:
        return
    masks, lengths = masks_in(replay), {len(x) for x in replay.call_inputs if x.ndim}
    every = [(mean, [*others(mean, masks, lengths)]) for mean in means_in(replay)]
    yield from chain.from_iterable(alike([each]) for each in every)
    by_mask = [*grouped(every, lambda each: (each[0].x.shape, bits(each[0].kept))).values()]
    by_line = [those for each in by_mask for those in grouped(each, lambda each: each[0].at.op.place).values()]
    yield from chain.from_iterable(alike(those) for those in (*by_line, *by_mask) if len(those) > 1)
    sums = [(op, partial(averaged, masks_of_runs)) for op, masks_of_runs in row_sums_in(replay)]
    for those in [*([each] for each in sums), *([sums] if len(sums) > 1 else [])]:
        yield propose(OF_ROWS, tuple(op.target for op, _ in those), partial(Rewrite, {op.place: mean for op, mean in those}))


def averaged(masks: list[torch.Tensor], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a sum over some axes, divided by that of the mask of this run."""
    return function(*args, **kwargs) / function(masks[n].to(args[0].dtype), *args[1:], **kwargs)


def alike(several: list[tuple[Mean, list[Other]]]) -> Iterator[Proposal]:
    """Mutations of several means that all are other ones of one kind."""
    targets = tuple(mean.at.target for mean, _ in several)
    for together in zip(*(those for _, those in several), strict=True):
        yield propose(OTHER, targets, partial(edit, [other.computes for other in together]), **together[0].words)


def edit(several: list[Callable[[], Mapping[At, Compute]]]) -> Rewrite:
    """Rewrite with all that these give."""
    return in_their_runs({at: compute for each in several for at, compute in each().items()})


def others(mean: Mean, masks: list[tuple[Target, torch.Tensor]], lengths: Collection[int]) -> Iterator[Other]:
    """Other means of the same entries: of other entries, of another form, or both. `lengths`: those of the call's inputs."""
    own, forms, is_small = Kept("own", {}, mean.kept), [*forms_of(mean, lengths)], mean.x.numel() <= MOST_ENTRIES
    choices, elsewhere = ([*choices_of(mean, masks)], [*moved(mean)]) if is_small else ([], [])
    plain = [*product(forms[:1], choices), *product(forms, [own]), *product(forms[:1], elsewhere)]
    for form, chosen in [*plain, *product(forms[1:], choices)]:
        words = {"how": f"{form.how} {chosen.which}", **form.words, **chosen.words}
        yield Other(words, partial(mean.computes, chosen.kept, form.reduce))


def forms_of(mean: Mean, lengths: Collection[int]) -> Iterator[Form]:
    """Ways to make one number of a mean's entries."""
    n = mean.x.numel()
    yield Form("mean", {}, lambda x, shares, more: x.sum() / (shares.sum() + more))
    yield Form("sum", {}, lambda x, shares, more: x.sum())
    yield Form("entries", {"n": n}, lambda x, shares, more: x.sum() / n)
    for rows in rows_of(mean):
        if mean.x.ndim > 1 or rows in lengths:  # or any factor would be a number of rows
            yield Form("rows", {"rows": rows}, lambda x, shares, more, rows=rows: x.sum() / rows)
        yield Form("rows_first", {"rows": rows}, partial(by_groups, lambda x, rows=rows: x.reshape(rows, -1)))
        by_columns = partial(by_groups, lambda x, rows=rows: x.reshape(rows, -1).T)
        yield Form("columns_first", {"columns": n // rows}, by_columns)
    if mean.x.ndim > 1:
        last = mean.x.shape[-1]
        yield Form("last_summed", {}, lambda x, shares, more: last * x.sum() / (shares.sum() + more))


def by_groups(
    order: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, shares: torch.Tensor, more: float
) -> torch.Tensor:
    """Mean over groups of the mean of each: rows of `order(x)`."""
    return (order(x).sum(1) / (order(shares).sum(1) + more)).mean()


def rows_of(mean: Mean) -> list[int]:
    """Numbers of rows: the length of the first axis; of entries that are flat, every number that fits."""
    n = mean.x.numel()
    if mean.x.ndim > 1:
        return [len(mean.x)]
    return [rows for rows in range(2, min(n, MOST_ROWS + 1)) if n % rows == 0]


def choices_of(mean: Mean, masks: list[tuple[Target, torch.Tensor]]) -> Iterator[Kept]:
    """Other entries: all, or those of another mask."""
    if not is_every(mean.kept):
        yield Kept("every", {"all": mean.x.numel()}, torch.ones_like(mean.kept))
    for target, mask in masks:
        other = spread(mask, mean.x)
        if other is not None and not is_every(other) and not torch.equal(other, mean.kept):
            yield Kept("masked", {"mask": target.label}, other)


def moved(mean: Mean) -> Iterator[Kept]:
    """Entries without an end of each row, and by the mask moved along rows, or inverted."""
    own, is_masked = mean.kept, not is_every(mean.kept)
    for rows in rows_of(mean):
        by_rows = own.reshape(rows, -1)
        ways = {"without_first": without(by_rows, 0), "without_last": without(by_rows, -1)}
        if is_masked:
            later, earlier = by_rows.roll(1, 1), by_rows.roll(-1, 1)
            ways |= {"later": without(later, 0), "earlier": without(earlier, -1)}
            ways |= {"rolled_later": later, "rolled_earlier": earlier}
        for which, kept in ways.items():
            yield Kept(which, {"of": rows}, kept.reshape(own.shape))
    if is_masked:
        yield Kept("contrary", {}, 1 - own)


def without(kept: torch.Tensor, column: int) -> torch.Tensor:
    """Weights of entries, with 0 in one column."""
    other = kept.clone()
    other[:, column] = 0
    return other


def bits(kept: torch.Tensor) -> bytes:
    """Bytes of the weights of entries; none where all entries count alike."""
    return b"" if is_every(kept) else kept.numpy().tobytes()


def is_every(kept: torch.Tensor) -> bool:
    """True where all entries count alike."""
    return bool((kept == 1).all())


def masks_in(replay: Replay) -> list[tuple[Target, torch.Tensor]]:
    """Distinct tensors of 0 and 1 in the code: inputs of the call first, then what operations give."""
    inputs = ((Target(f"input {i} of the call"), x) for i, x in enumerate(replay.call_inputs))
    outputs = ((op.target, op.output) for op in replay.listed)
    found: list[tuple[Target, torch.Tensor]] = []
    for target, x in (*inputs, *outputs):
        if is_mask(x) and not any(torch.equal(x.double(), each) for _, each in found):
            found.append((target, x.double()))
    return found[:MOST_MASKS]
