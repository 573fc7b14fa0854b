"""What may be otherwise in how entries lie: the order of pixels and patches, of packed parts, height for width."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_children import path_of
from jaxformer.parity.explain.alterations.of_modules import held
from jaxformer.parity.explain.alterations.of_operations import MOST_AXES, RESHAPES, instead
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.other_functions import merged, split_in
from jaxformer.parity.explain.alterations.rerun import Rerun

PARTS = (2, 3, 4)
"""Into which an axis may be packed, as queries, keys and values."""
PACKED = {
    "as height, width, channels": (4, 5, 3),
    "as channels, width, height": (3, 5, 4),
    "as width, height, channels": (5, 4, 3),
}
"""How the axes channels, height and width of a block may lie."""
AXES = {
    torch.nn.Conv1d: ("channels", "steps"),
    torch.nn.Conv2d: ("channels", "rows", "columns"),
    torch.nn.Conv3d: ("channels", "frames", "rows", "columns"),
}
"""In which a patch's entries lie."""


def orders(operation: Operation) -> Iterator[Alteration]:
    """Axes in another order where they are merged or split."""
    if operation.name not in RESHAPES or not isinstance(operation.output, torch.Tensor):
        return
    before, after = operation.args[0], operation.output
    if 3 <= before.ndim <= MOST_AXES and after.ndim < before.ndim:
        for order in [*itertools.permutations(range(1, before.ndim))][1:]:
            says = f"merges the axes in the order {', '.join(map(str, (0, *order)))}"
            yield instead(operation, says, partial(merged, (0, *order)))
    for axis in range(after.ndim - 1) if after.ndim > before.ndim else ():
        says = f"splits axes {axis} and {axis + 1} the other way round"
        yield instead(operation, says, partial(split_in, axis, (axis + 1, axis)))
    for axes in split_axes(before.shape, after.shape):
        for order in itertools.permutations(axes) if 2 < len(axes) < MOST_AXES else ():
            if sum(at != axis for at, axis in zip(order, axes, strict=True)) > 2:
                says = f"splits axes {axes[0]} to {axes[-1]} as if they were {', '.join(map(str, order))}"
                yield instead(operation, says, partial(split_in, axes[0], order))


def split_axes(before: Sequence[int], after: Sequence[int]) -> Iterator[range]:
    """Into which each axis is split."""
    at = 0
    for size in before:
        end = at + 1
        while end < len(after) and math.prod(after[at:end]) < size:
            end += 1
        if math.prod(after[at:end]) != size:
            return
        yield range(at, end)
        at = end


def shuffles(operation: Operation) -> Iterator[Alteration]:
    """Pixels of blocks that come from channels, or go to them, in another order."""
    if operation.name == "pixel_shuffle":
        for says, order in PACKED.items():
            yield instead(operation, f"reads the channels {says}", partial(shuffled, order))
    if operation.name == "pixel_unshuffle":
        for says, order in PACKED.items():
            yield instead(operation, f"packs the channels {says}", partial(unshuffled, order))


def shuffled(order: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """B C H W of B (parts) H W, the parts of a channel lying in an order of their own: 3 is the channel, 4 and 5 its block."""
    x, by = args[0], args[1] if len(args) > 1 else kwargs["upscale_factor"]
    rows, channels, height, width = x.shape
    sizes = {3: channels // by**2, 4: by, 5: by}
    y = x.reshape(rows, *(sizes[axis] for axis in order), height, width)
    at = {axis: 1 + order.index(axis) for axis in order}
    return y.permute(0, at[3], 4, at[4], 5, at[5]).reshape(rows, -1, height * by, width * by)


def unshuffled(order: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The other way."""
    x, by = args[0], args[1] if len(args) > 1 else kwargs["downscale_factor"]
    rows, channels, height, width = x.shape
    y = x.reshape(rows, channels, height // by, by, width // by, by)
    at = {3: 1, 4: 3, 5: 5}
    return y.permute(0, *(at[axis] for axis in order), 2, 4).reshape(rows, -1, height // by, width // by)


def packings(operation: Operation) -> Iterator[Alteration]:
    """An axis that is split, whose second part holds several: these may lie before the first."""
    if operation.name not in RESHAPES or not isinstance(operation.output, torch.Tensor):
        return
    before, after = operation.args[0].shape, operation.output.shape
    for axis in range(len(after) - 1) if len(after) > len(before) else ():
        for parts in PARTS:
            if after[axis] > 1 and after[axis + 1] > parts and after[axis + 1] % parts == 0:
                says = f"has {parts} parts of axis {axis + 1} in blocks before axis {axis}"
                yield instead(operation, says, partial(in_blocks, axis, parts))


def in_blocks(axis: int, parts: int, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """(part, a, b) where torch has (a, part, b)."""
    y = function(*args, **kwargs)
    sizes = [*y.shape]
    x = y.reshape(*sizes[:axis], parts, sizes[axis], sizes[axis + 1] // parts, *sizes[axis + 2 :])
    return x.transpose(axis, axis + 1).reshape(sizes)


def merges(operation: Operation) -> Iterator[Alteration]:
    """Axes that are merged as they lie before the transposition in front of it: rows of another array."""
    if operation.name not in RESHAPES or not isinstance(operation.output, torch.Tensor):
        return
    x = operation.args[0]
    for one, other in itertools.combinations(range(1, x.ndim), 2) if 2 < x.ndim <= MOST_AXES + 1 else ():
        if min(x.shape[one], x.shape[other]) > 1:
            says = f"reads axes {one} and {other} as if they were exchanged"
            yield instead(operation, says, partial(read_exchanged, (one, other)))


def read_exchanged(axes: tuple[int, int], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The same entries in the shape that torch gives, from an array with two axes exchanged."""
    return args[0].transpose(*axes).reshape(function(*args, **kwargs).shape)


def patches(rerun: Rerun) -> Iterator[Alteration]:
    """Of a child that makes one vector of each patch: the order in which the patch's entries meet the kernel."""
    given = {site.path: site for site in rerun.given if rerun.inputs.get(site) is not None}
    for name, module in rerun.module.named_modules():
        if type(module) in AXES and module.kernel_size == module.stride and math.prod(module.kernel_size) > 1 == module.groups:
            site = given.get(".".join(filter(None, (path_of(rerun), name))))
            for says, kernel in kernels(module.weight, AXES[type(module)]):
                inside = (
                    partial(held, module.weight, kernel) if site is None else partial(convolved, rerun, site, module, kernel)
                )
                torch_says = f"{name} reads its patches in the order {', '.join(AXES[type(module)])}"
                yield Alteration(torch_says, says, inside)


def kernels(weight: torch.Tensor, names: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Whose entries meet those of patches in another order."""
    for order in [*itertools.permutations(range(len(names)))][1:]:
        sizes = [weight.shape[1:][axis] for axis in order]
        back = [1 + order.index(axis) for axis in range(len(order))]
        yield f"in the order {', '.join(names[axis] for axis in order)}", weight.reshape(len(weight), *sizes).permute(0, *back)


def convolved(rerun: Rerun, site: Site, module: Any, kernel: torch.Tensor) -> Any:
    """Inside, the child gives what another kernel gives."""
    return rerun.given_outputs({site: module._conv_forward(rerun.inputs[site], kernel, module.bias)})


KINDS = (orders, shuffles, packings, merges)
