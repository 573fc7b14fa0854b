"""Mutations of one operation on the way back alone, with the same values."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.nudges import of_reals
from jaxformer.parity.diagnose.operators.arguments import with_operand
from jaxformer.parity.diagnose.operators.functions import is_real
from jaxformer.parity.diagnose.operators.operations import ORDINALS
from jaxformer.parity.diagnose.trace import Op
from jaxformer.parity.numerics.float_masks import MASKED

STATISTICS_STOPPED = Change("gradients.statistics_stopped", "stops the gradient of its {which:and} (`stop_gradient`)")
RELEASED = Change("gradients.released", "does not stop its gradient: `jax.lax.stop_gradient` is missing")
STOPPED = Change("gradients.stopped", "stops its gradient (`stop_gradient`)")
OPERAND_STOPPED = Change("gradients.operand_stopped", "stops the gradient of its {operand} operand (`stop_gradient`)")
ROW_TRAINED = Change("gradients.row_trained", "trains row {row}, which torch's padding_idx leaves as it is")
MASKED_SCORES = "the gradient of masked scores, which is seen where every key is masked"
MASK_STOPPED = Change("gradients.mask_stopped", f"stops {MASKED_SCORES}")
MASK_SENT = Change("gradients.mask_sent", f"does not stop {MASKED_SCORES}")
NORMS = {
    "batch_norm": ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    "layer_norm": ("x", "normalized_shape", "weight", "bias", "eps"),
}
"""Norms that are one operation, and their arguments."""
STATISTICS = (("mean", "variance"), ("variance",), ("mean",))


def stops(op: Op) -> Iterator[Proposal]:
    """Stops of the gradient of one operation, and of its operands."""
    for which in STATISTICS if op.name in NORMS else ():
        yield op.instead(STATISTICS_STOPPED, partial(normed, which), which=which)
    if op.name in ("detach", "get_data"):
        yield op.instead(RELEASED, lambda f, a, k, n: a[0])
    elif is_real(op):
        yield op.instead(STOPPED, lambda f, a, k, n: f(*a, **k).detach())
        floats = [i for i, x in enumerate(op.args[:3]) if of_reals(x)]
        for i in floats if len(floats) > 1 else ():
            yield op.instead(OPERAND_STOPPED, partial(with_operand, i, torch.detach), operand=ORDINALS[i])


def usual(op: Op) -> Iterator[Proposal]:
    """What many ports do otherwise: rows of a table that torch does not train, and masked scores, which count where every key
    is masked."""
    row = op.kwargs.get("padding_idx")
    if op.name == "embedding" and row is not None:
        yield op.instead(ROW_TRAINED, lambda f, a, k, n: f(*a, **{**k, "padding_idx": None}), row=row)
    if op.name in ("add", "iadd", "radd") and any(of_reals(x) and bool((x <= MASKED).any()) for x in op.args):
        yield op.instead(MASK_STOPPED, masked_stopped)
    if op.name in ("masked_fill", "where") and any(goes_on(x, op.output) for x in op.args):
        yield op.instead(MASK_SENT, masked_sent)


def masked_stopped(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A mask that is added, as if it were filled in."""
    y = function(*args, **kwargs)
    hidden = torch.stack([(x <= MASKED).expand_as(y) for x in args[:2] if isinstance(x, torch.Tensor)]).any(0)
    return torch.where(hidden, y.detach(), y)


def masked_sent(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A mask that is filled in, as if it were added."""
    y = function(*args, **kwargs)
    x = next(x for x in args if goes_on(x, y))
    return x + (y - x).detach()


def goes_on(x: Any, y: Any) -> bool:
    """True if an array has a gradient, of the shape of what is made of it."""
    return of_reals(x) and of_reals(y) and x.shape == y.shape


def normed(which: tuple[str, ...], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A norm with the gradient of some of its statistics stopped; ValueError for running statistics, which have none."""
    given: dict[str, Any] = dict(zip(NORMS[function.__name__], args, strict=False)) | kwargs
    x, weight, bias = given["x"], given.get("weight"), given.get("bias")
    if function.__name__ == "layer_norm":
        axes, shape = [*range(-len(given["normalized_shape"]), 0)], given["normalized_shape"]
    elif given.get("training"):
        axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    else:
        raise ValueError("running statistics have no gradient")
    mean, variance = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    mean, variance = (each.detach() if name in which else each for name, each in (("mean", mean), ("variance", variance)))
    y = (x - mean) / (variance + given.get("eps", 1e-5)).sqrt()
    return (y if weight is None else y * weight.reshape(shape)) + (0 if bias is None else bias.reshape(shape))
