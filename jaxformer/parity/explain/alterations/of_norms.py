"""What may be otherwise in over what a norm goes: several rows at once, other axes."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation

MOST_ROWS = 4096
NORMALIZED = ("layer_norm", "rms_norm")


def rows_together(operation: Operation) -> Iterator[Alteration]:
    """A group norm of `B * T` rows, over the rows of each B."""
    if operation.name != "group_norm":
        return
    rows = len(operation.args[0])
    for many in range(2, rows) if rows <= MOST_ROWS else ():
        if rows % many == 0:
            says = f"over {many} rows at once"
            yield instead(operation, says, partial(by_blocks, many))


def by_blocks(many: int, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """So many rows are one, with more positions."""
    x = args[0]
    blocks = x.reshape(-1, many, *x.shape[1:]).transpose(1, 2)
    y = function(blocks.contiguous(), *args[1:], **kwargs)
    return y.transpose(1, 2).reshape(x.shape)


def other_axes(operation: Operation) -> Iterator[Alteration]:
    """A layer norm over other axes than the last."""
    x = next(iter(operation.args), None)
    if operation.name not in NORMALIZED or not isinstance(x, torch.Tensor) or not 2 < x.ndim < 5:
        return
    for many in (1, 2):
        for axes in itertools.combinations(range(x.ndim), many):
            if axes != (x.ndim - 1,):
                says = f"over ax{'es' if many > 1 else 'is'} {' and '.join(map(str, axes))}"
                yield instead(operation, says, partial(normed_over, axes))


def normed_over(axes: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """With torch's gain and bias."""
    held = dict(zip(("shape", "weight", "bias", "eps"), args[1:], strict=False)) | kwargs
    if function.__name__ == "rms_norm":
        held = dict(zip(("shape", "weight", "eps"), args[1:], strict=False)) | kwargs
    x, weight, bias = args[0], held.get("weight"), held.get("bias")
    y = x - x.mean(axes, keepdim=True) if function.__name__ == "layer_norm" else x
    y = y / (y.square().mean(axes, keepdim=True) + (held.get("eps") or 0.0)).sqrt()
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


KINDS = (rows_together, other_axes)
