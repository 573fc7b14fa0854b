"""What may be otherwise in one operation of torch's code on the way back alone, with the same values."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead, is_real
from jaxformer.parity.explain.alterations.operations import Operation, of_reals
from jaxformer.parity.numerics.float_masks import MASKED

STOPPING = {"detach", "get_data"}
SEEN = "which is seen where every key is masked"


def stops(operation: Operation) -> Iterator[Alteration]:
    """Of one operation."""
    if operation.name in STATISTICS:
        for says, which in (("mean and variance", (0, 1)), ("variance", (1,)), ("mean", (0,))):
            stop = partial(STATISTICS[operation.name], which)
            yield instead(operation, f"stops the gradient of its {says}", lambda f, a, k, n, stop=stop: stop(*a, **k))
    if operation.name in STOPPING:
        yield instead(operation, "does not stop its gradient", lambda f, a, k, n: a[0])
        return
    if not is_real(operation):
        return
    yield instead(operation, "stops its gradient", lambda f, a, k, n: f(*a, **k).detach())
    floats = [i for i, x in enumerate(operation.args[:3]) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for i in floats if len(floats) > 1 else ():
        says = f"stops the gradient of its {('first', 'second', 'third')[i]} operand"
        yield instead(operation, says, lambda f, a, k, n, i=i: f(*a[:i], a[i].detach(), *a[i + 1 :], **k))


def usual(operation: Operation) -> Iterator[Alteration]:
    """What many ports do otherwise: rows of a table that torch does not train, and masked scores, which count where every key
    is masked."""
    row = operation.kwargs.get("padding_idx")
    if operation.name == "embedding" and row is not None:
        says = f"trains row {row}, which torch's padding_idx leaves as it is"
        yield instead(operation, says, lambda f, a, k, n: f(*a, **{**k, "padding_idx": None}))
    if operation.name in ("add", "iadd", "radd") and any(of_reals(x) and bool((x <= MASKED).any()) for x in operation.args):
        yield instead(operation, f"stops the gradient of masked scores, {SEEN}", masked_stopped)
    if operation.name in ("masked_fill", "where") and any(goes_on(x, operation.output) for x in operation.args):
        yield instead(operation, f"does not stop the gradient of masked scores, {SEEN}", masked_sent)


def masked_stopped(function: Any, args: Any, kwargs: Any, number: int) -> Any:
    """A mask that is added, as if it were filled in."""
    y = function(*args, **kwargs)
    hidden = torch.stack([(x <= MASKED).expand_as(y) for x in args[:2] if isinstance(x, torch.Tensor)]).any(0)
    return torch.where(hidden, y.detach(), y)


def masked_sent(function: Any, args: Any, kwargs: Any, number: int) -> Any:
    """A mask that is filled in, as if it were added."""
    y = function(*args, **kwargs)
    x = next(x for x in args if goes_on(x, y))
    return x + (y - x).detach()


def goes_on(x: Any, y: Any) -> bool:
    """Whether an array has a gradient, of the shape of what is made of it."""
    return of_reals(x) and of_reals(y) and x.shape == y.shape


def stopped_batch_norm(which: tuple[int, ...], x: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Any:
    """By the statistics of the batch."""
    held = dict(zip(("weight", "bias", "training", "momentum", "eps"), others, strict=False)) | named
    if not held.get("training"):
        raise ValueError("running statistics have no gradient")
    axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    weight, bias = (each if each is None else each.reshape(shape) for each in (held.get("weight"), held.get("bias")))
    return normed(which, x, axes, weight, bias, held.get("eps", 1e-5))


def stopped_layer_norm(which: tuple[int, ...], x: Any, shape: Any, *others: Any, **named: Any) -> Any:
    """Over the last axes."""
    held = dict(zip(("weight", "bias", "eps"), others, strict=False)) | named
    return normed(which, x, [*range(-len(shape), 0)], held.get("weight"), held.get("bias"), held.get("eps", 1e-5))


def normed(which: tuple[int, ...], x: Any, axes: list[int], weight: Any, bias: Any, eps: float) -> Any:
    """With the gradient of some of its statistics stopped."""
    mean, variance = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    mean, variance = (each.detach() if i in which else each for i, each in enumerate((mean, variance)))
    y = (x - mean) / (variance + eps).sqrt()
    return (y if weight is None else y * weight) + (0 if bias is None else bias)


STATISTICS = {"batch_norm": stopped_batch_norm, "layer_norm": stopped_layer_norm}
"""Of norms that are one operation."""
