"""Mutations of the order of entries: axes merged or split in another order, pixels, patches, slices, joins and repeats."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.computes import Compute, of_both, of_first, with_operand
from jaxformer.parity.diagnose.functions import RESHAPES
from jaxformer.parity.diagnose.modules import held, path_of
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.numbers_and_orders import WAVES, first_wave
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op
from jaxformer.parity.trace.call_sites import Site

MOST_WINDOWS = 8
"""Largest number of entries that a slice leaves out, for other slices of its size to be tried."""
MOST_AXES, MOST_JOINED = 5, 4
JOINS = ("cat", "concat")
BLOCK = {"channels": 1, "height": 3, "width": 5}
"""Axes of a block's pixels in an image `B C H h W w`."""
BLOCK_ORDERS = ("height", "width", "channels"), ("channels", "width", "height"), ("width", "height", "channels")
PATCH_AXES = {
    torch.nn.Conv1d: ("channels", "steps"),
    torch.nn.Conv2d: ("channels", "rows", "columns"),
    torch.nn.Conv3d: ("channels", "frames", "rows", "columns"),
}
"""Names of a patch's axes."""


def split_as(args: dict[str, Any]) -> str:
    """Words such as 'reshapes axes 2 and 3 as (3, 2), torch (2, 3)'."""
    one, other = args["sizes"]
    return f"reshapes axes {{axes:and}} as ({other}, {one}), torch ({one}, {other}): the two in the other order"


def joined(args: dict[str, Any]) -> str:
    """Words for parts that are joined in reverse order."""
    return f"joins them the other way round{': ' * bool(args['waves'])}{WAVES.get(args['waves'], '')}"


MERGED = Change("permute.merged", "merges the axes in the order {order}: a transposition before it")
SPLIT_SWAPPED = Change("permute.split_swapped", split_as)
SPLIT = Change("permute.split", "splits axes {first} to {last} in the order {order}")
READ = Change("permute.read", "reshapes without the transposition of axes {axes:and} before it", reroutes=True)
SHUFFLED = Change("permute.shuffled", "reads the channels as ({order})", reroutes=True)
UNSHUFFLED = Change("permute.unshuffled", "packs the channels as ({order})")
PATCHES = Change("permute.patches", "as ({order})", "flattens the patches of {0} as ({axes})")
WINDOW = Change("permute.window", "takes entries {first} to {last} of axis {axis}")
REVERSED = Change("permute.join_reversed", joined)
JOINED = Change("permute.join_order", "joins them in the order {order}")
ZEROS = Change("permute.join_zeros", "has 0 for part {part} of {parts}")
IN_TURNS = Change("permute.join_in_turns", "interleaves them (`stack(..., -1)`, flattened), not one after the other")
IN_A_ROW = Change("permute.join_in_a_row", "joins one after the other (`cat`), not interleaved")
REPEATED = Change(
    "permute.repeated",
    {
        "whole": "tiles the whole, 0 1 0 1 (torch's is `jnp.repeat`)",
        "each": "repeats each, 0 0 1 1 (torch's is `jnp.tile`)",
    },
)
REPEATING = {"repeat_interleave": "whole", "repeat": "each", "tile": "each"}
"""Functions that repeat entries, and the key of the words for what they are mistaken for."""
NO_FACTOR = Change(
    "permute.no_factor",
    {
        **{how: f"leaves out the {how} operand" for how in ("first", "second", "third")},
        "other": "leaves out operand {number}",
    },
)


def reorders(several: Iterable[int]) -> list[tuple[int, ...]]:
    """All orders but the given one, which is torch's."""
    return [*itertools.permutations(several)][1:]


def is_reshape(op: Op) -> bool:
    """True if an operation merges or splits axes."""
    return op.name in RESHAPES and isinstance(op.output, torch.Tensor)


def split_in(axes: Sequence[int], shape: Sequence[int], x: torch.Tensor) -> torch.Tensor:
    """Reshape an array to `shape`, reading it as if the axes lay in the order `axes`."""
    return x.reshape([shape[axis] for axis in axes]).permute([axes.index(axis) for axis in range(len(shape))])


def merges_and_splits(op: Op) -> Iterator[Proposal]:
    """Mutations of the order in which axes are merged or split."""
    if not is_reshape(op):
        return
    before, after = op.args[0], op.output
    for order in reorders(range(1, before.ndim)) if before.ndim > after.ndim and 3 <= before.ndim <= MOST_AXES else ():
        axes = (0, *order)
        yield op.instead(MERGED, with_operand(0, lambda x, axes=axes: x.permute(axes).contiguous()), order=axes)
    for axis in range(after.ndim - 1) if after.ndim > before.ndim else ():
        sizes = tuple(after.shape[axis : axis + 2])
        yield op.instead(SPLIT_SWAPPED, split_otherwise(axis, (axis + 1, axis)), axes=(axis, axis + 1), sizes=sizes)
    for axes in split_axes(before.shape, after.shape):
        for order in itertools.permutations(axes) if 2 < len(axes) < MOST_AXES else ():
            if sum(at != axis for at, axis in zip(order, axes, strict=True)) > 2:
                yield op.instead(SPLIT, split_otherwise(axes[0], order), first=axes[0], last=axes[-1], order=order)


def split_otherwise(first: int, order: tuple[int, ...]) -> Compute:
    """Split an axis, with the axes from `first` on in another order."""
    return of_both(lambda x, y: split_in([*range(first), *order, *range(first + len(order), y.ndim)], y.shape, x))


def split_axes(before: Sequence[int], after: Sequence[int]) -> Iterator[range]:
    """Axes of `after` into which each axis of `before` is split."""
    at = 0
    for size in before:
        end = at + 1
        while end < len(after) and math.prod(after[at:end]) < size:
            end += 1
        if math.prod(after[at:end]) != size:
            return
        yield range(at, end)
        at = end


def transposed(op: Op) -> Iterator[Proposal]:
    """Mutations that leave out the transposition before axes are merged."""
    ndim = op.args[0].ndim if is_reshape(op) else 0
    for axes in itertools.combinations(range(1, ndim), 2) if 2 < ndim <= MOST_AXES + 1 else ():
        if min(op.args[0].shape[axis] for axis in axes) > 1:
            yield op.instead(READ, of_both(lambda x, y, axes=axes: x.transpose(*axes).reshape(y.shape)), axes=axes)


def pixels(op: Op) -> Iterator[Proposal]:
    """Mutations of the order in which channels pack blocks of pixels: `pixel_shuffle` and `pixel_unshuffle`."""
    changes = {"pixel_shuffle": (SHUFFLED, shuffled), "pixel_unshuffle": (UNSHUFFLED, unshuffled)}
    for order in BLOCK_ORDERS if op.name in changes else ():
        change, compute = changes[op.name]
        yield op.instead(change, of_both(partial(compute, (0, *(BLOCK[name] for name in order), 2, 4))), order=order)


def shuffled(order: tuple[int, ...], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `pixel_shuffle` of channels that pack the axes `B C H h W w` in another order."""
    (rows, channels, *_), (height, width) = y.shape, x.shape[-2:]
    blocks = rows, channels, height, y.shape[-2] // height, width, y.shape[-1] // width
    return split_in(order, blocks, x).reshape(y.shape)


def unshuffled(order: tuple[int, ...], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `pixel_unshuffle` to channels that pack the axes `B C H h W w` in another order."""
    (rows, channels, *_), (height, width) = x.shape, y.shape[-2:]
    return x.reshape(rows, channels, height, -1, width, x.shape[-1] // width).permute(order).reshape(y.shape)


def patches(replay: Replay) -> Iterator[Proposal]:
    """Mutations of a patch embedding (a convolution with a stride as large as its kernel): the order in which patches are
    flattened."""
    given = {site.path: site for site in replay.given if replay.inputs.get(site) is not None}
    for name, module in replay.module.named_modules():
        axes = PATCH_AXES.get(type(module), ())
        if axes and module.kernel_size == module.stride and math.prod(module.kernel_size) > 1 == module.groups:
            site = given.get(".".join(filter(None, (path_of(replay), name))))
            weight: torch.Tensor = module.weight
            for order in reorders(range(1, weight.ndim)):
                kernel = split_in((0, *order), weight.shape, weight)
                edits = partial(held, weight, kernel) if site is None else partial(convolved, replay, site, module, kernel)
                yield propose(PATCHES, name, edits, axes=axes, order=tuple(axes[axis - 1] for axis in order))


def convolved(replay: Replay, site: Site, module: Any, kernel: torch.Tensor) -> Any:
    """Edit in which a convolution that jax calls too has another kernel."""
    return replay.given_outputs({site: module._conv_forward(replay.inputs[site], kernel, module.bias)})


def windows(op: Op) -> Iterator[Proposal]:
    """Mutations of a slice along one axis: as many entries from another one on, as of what is kept of a padded convolution."""
    x, y = next(iter(op.args), None), op.output
    if op.name not in ("getitem", "narrow") or not isinstance(x, torch.Tensor) or x.ndim != y.ndim:
        return
    axes = [axis for axis in range(x.ndim) if x.shape[axis] != y.shape[axis]]
    if len(axes) != 1:
        return
    (axis,) = axes
    size, most = y.shape[axis], x.shape[axis] - y.shape[axis]
    for first in range(most + 1) if most <= MOST_WINDOWS else ():
        compute = of_first(lambda x, first=first: x.narrow(axis, first, size))
        yield op.instead(WINDOW, compute, first=first, last=first + size - 1, axis=axis)


def joins(op: Op) -> Iterator[Proposal]:
    """Mutations of joins: another order, zeros for one part, two parts interleaved or one after the other."""
    parts = next(iter(op.args), None)
    if op.name not in (*JOINS, "stack") or not isinstance(parts, (tuple, list)):
        return
    many, shapes = len(parts), {part.shape for part in parts}
    if op.name in JOINS:
        real = [part.detach().double().numpy() for part in parts if part.is_floating_point()]
        waves = first_wave(*real) if len(real) == many == 2 else ""
        yield op.instead(REVERSED, with_operand(0, lambda x: x[::-1]), waves=waves)
        for order in reorders(range(many))[:-1] if 2 < many <= MOST_JOINED else ():
            yield op.instead(JOINED, with_operand(0, lambda x, order=order: [x[i] for i in order]), order=order)
        for part in range(many) if many <= MOST_JOINED else ():
            zeroed = with_operand(0, lambda parts, part=part: [x * (i != part) for i, x in enumerate(parts)])
            yield op.instead(ZEROS, zeroed, part=part + 1, parts=many)
        if many == 2 and len(shapes) == 1 and parts[0].ndim > 1 and parts[0].shape[-1] > 1:
            yield op.instead(IN_TURNS, lambda f, a, k, n: torch.stack([*a[0]], -1).flatten(-2))
    if op.name == "stack" and many == 2 == op.output.shape[-1]:
        yield op.instead(IN_A_ROW, lambda f, a, k, n: torch.cat([*a[0]], -1).reshape(op.output.shape))


def repeats(op: Op) -> Iterator[Proposal]:
    """Mutation that tiles for `repeat_interleave`, or the other way round."""
    if how := REPEATING.get(op.name):
        yield op.instead(REPEATED, of_both(whole_repeated if how == "whole" else each_repeated), how=how)


def whole_repeated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute a b a b for a a b b."""
    (axis,) = [axis for axis in range(y.ndim) if y.shape[axis] != x.shape[axis]]
    return torch.cat([x] * (y.shape[axis] // x.shape[axis]), axis)


def each_repeated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute a a b b for a b a b."""
    for axis, size in enumerate(y.shape):
        x = x.repeat_interleave(size // x.shape[axis], axis)
    return x


def factors(op: Op) -> Iterator[Proposal]:
    """Mutations of an einsum that leave out one of its factors."""
    for number in range(1, len(op.args)) if op.name == "einsum" else ():
        how = {1: "first", 2: "second", 3: "third"}.get(number, "other")
        yield op.instead(NO_FACTOR, with_operand(number, torch.ones_like), how=how, number=number)
