"""Mutations of rows that have other lengths, each row its own, in padding masks or in arrays that are 0 behind them: lengths
that are computed otherwise, as those of convolutions over waves."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose import mutation
from jaxformer.parity.diagnose.attention_cores import FUSED
from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.computes import gives, with_named, with_operand
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, Target, propose
from jaxformer.parity.diagnose.operators.masks import is_new_mask, mask_of, without
from jaxformer.parity.diagnose.operators.reroute import array_of
from jaxformer.parity.diagnose.other_masks import row_ends
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import off
from jaxformer.parity.diagnose.trace import Op
from jaxformer.parity.numerics.metrics import EXPLAINED

MOST_KEYS, MOST_OPERATIONS, SHOWN = 128, 20_000, 5
"""Largest number of keys, and of replayed operations of one mask; so many lengths are shown."""
LENGTHS = Change(
    "row_lengths.solved",
    "shows {jax}",
    lambda args: "shows {torch}, by {0}" if args["torch"] else "shows all keys in {0}",
    cost=mutation.GIVEN,
)
ZEROED = Change("row_lengths.zeroed", "has 0 behind {jax}", "has {0} as it is")


class Rows(NamedTuple):
    """Rows of a batch that show their queries the keys at one end."""

    target: str | Target
    lengths: torch.Tensor
    keys: int
    is_masked: bool
    """True where torch has a mask there."""
    edit: Callable[[torch.Tensor], Edit]
    """edit(lengths) -> the edit in which the rows have other lengths."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the padding masks that a call is given or makes, or of attention without a mask: each row gets the length
    that gives jax's row."""
    jax = replay.compared.get(replay.place)
    if jax is None or jax.shape != replay.wanted.shape or jax.ndim < 2:
        return
    for rows in [*rows_of_masks(replay)] or rows_without_masks(replay, len(jax)):
        fits = len(rows.lengths) == len(jax) and rows.keys <= MOST_KEYS and rows.keys * replay.cost <= MOST_OPERATIONS
        lengths = solved(replay, rows, jax) if fits else None
        if lengths is not None and not torch.equal(lengths, rows.lengths):
            words = listed(lengths, "keys"), listed(rows.lengths, "keys") if rows.is_masked else ""
            yield propose(LENGTHS, rows.target, partial(rows.edit, lengths), jax=words[0], torch=words[1])


def zeroed(replay: Replay) -> Iterator[Proposal]:
    """Mutation in which the array `B T D` is 0 behind as many positions of each row as in jax's array."""
    jax = replay.compared.get(replay.place)
    if jax is None or jax.shape != replay.wanted.shape or jax.ndim != 3:
        return
    kept = torch.from_numpy(jax != 0).any(-1)
    lengths = kept.sum(-1)
    shown = of_lengths(torch.arange(jax.shape[1]), 2, lengths)
    if torch.equal(shown, kept) and not kept.all() and replay.wanted[~kept.numpy()].any():
        array = array_of(replay)
        yield propose(ZEROED, array.target, partial(array.edit, shown[..., None].mul), jax=listed(lengths, "positions"))


def rows_of_masks(replay: Replay) -> Iterator[Rows]:
    """Rows of the padding masks that a call is given, and that it makes."""
    known: list[torch.Tensor] = []
    found: list[tuple[str | Target, torch.Tensor, Callable[[torch.Tensor], Edit]]] = []
    for i, array in enumerate(replay.input_arrays):
        if is_new_mask(array, known):
            found.append((f"input {i}", array, lambda other, i=i: replay.given_inputs({i: other})))
    for op in replay.operations:
        if is_new_mask(op.output, known):
            found.append((op.target, op.output, lambda other, op=op: op.rewrite(gives(other))))
    for target, array, edit in found:
        mask = mask_of(array, replay.operations)
        if (places := row_ends(mask.seen)) is not None:
            own = mask.seen.reshape(len(mask.seen), -1, len(places))[:, 0].sum(-1)
            shown = partial(of_lengths, places, mask.seen.ndim)
            yield Rows(
                target,
                own,
                len(places),
                True,
                lambda lengths, mask=mask, edit=edit, shown=shown: edit(mask.showing(shown(lengths).expand_as(mask.seen))),
            )


def rows_without_masks(replay: Replay, rows: int) -> Iterator[Rows]:
    """Rows of attention weights where torch has no mask."""
    for op in replay.operations:
        if op.name == "softmax" and op.output.ndim > 2 and op.output.shape[-2] > 1 and len(op.output) % rows == 0:
            keys, edit = op.output.shape[-1], shown_to_softmax
        elif op.name == FUSED and not has_mask(given := named(op.function, op.args, op.kwargs)):
            keys, edit = given["key"].shape[-2], shown_to_kernel
        else:
            continue
        yield Rows(op.target, torch.full((rows,), keys), keys, False, partial(edit, op, torch.arange(keys)))


def has_mask(given: dict[str, Any]) -> bool:
    """True if fused attention has a mask, by its arguments."""
    return given.get("attn_mask") is not None or bool(given.get("is_causal"))


def shown_to_softmax(op: Op, places: torch.Tensor, lengths: torch.Tensor) -> Edit:
    """Edit in which a softmax is over so many keys of each row; a row may have several heads."""
    hidden = ~of_lengths(places, op.output.ndim, lengths.repeat_interleave(len(op.output) // len(lengths)))
    return op.rewrite(with_operand(0, without(hidden, -torch.inf)))


def shown_to_kernel(op: Op, places: torch.Tensor, lengths: torch.Tensor) -> Edit:
    """Edit in which fused attention is to so many keys of each row."""
    return op.rewrite(with_named(attn_mask=of_lengths(places, op.output.ndim, lengths)))


def of_lengths(places: torch.Tensor, ndim: int, lengths: torch.Tensor) -> torch.Tensor:
    """Boolean mask of `ndim` axes that shows so many keys in each row."""
    return places < lengths.reshape(-1, *[1] * (ndim - 1))


def solved(replay: Replay, rows: Rows, jax: np.ndarray) -> torch.Tensor | None:
    """Solve for the length of each row, by replays in which all rows have one length; None if a row has none.

    A row that torch's own length explains keeps it.
    """
    found = torch.full_like(rows.lengths, -1)
    for lengths in (rows.lengths, *(torch.full_like(found, n) for n in range(rows.keys + 1))):
        array = replay.array(rows.edit(lengths))
        if array is not None and array.shape == jax.shape:
            fits = torch.tensor([off(mine, its) <= EXPLAINED for mine, its in zip(array, jax, strict=True)])
            found = torch.where((found < 0) & fits, lengths, found)
    return None if (found < 0).any() else found


def listed(lengths: torch.Tensor, what: str) -> str:
    """Words for lengths: '3, 5 and 7 keys in the rows', or '4 keys in each row'."""
    first, *words = map(str, lengths[:SHOWN].tolist())
    if (lengths == lengths[0]).all():
        return f"{first} {what} in each row"
    last = ", ..." if len(lengths) > SHOWN else f" and {words.pop()}"
    return f"{', '.join([first, *words])}{last} {what} in the rows"
