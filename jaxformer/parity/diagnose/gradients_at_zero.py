"""Mutations of gradients at zero: of norms and deviations, whose gradient torch sets to 0 there, and of code that keeps zeros
from a root, a logarithm or a division. A port that writes these out has NaN there."""

from collections.abc import Iterator
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import of_reals
from jaxformer.parity.diagnose.computes import operand
from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.trace import Op

AT_ZERO = Change(
    "gradients.at_zero",
    "has NaN there: `jnp.where` around the root, and around what it is of, would keep it finite",
    "has a gradient of 0 where {0} is of zeros",
)
UNGUARDED = Change(
    "gradients.unguarded", "leaves that out, so that its gradient is NaN there", "keeps some numbers from what follows by {0}"
)
DIMENSION = {"norm": 2, "linalg_norm": 2, "linalg_vector_norm": 2, "normalize": 2, "cosine_similarity": 2, "std": 1}
"""Position of the axes among the arguments of functions whose gradient torch sets to 0 where all entries along the axes are 0,
or equal."""
BY_DEFAULT = {"normalize": 1, "cosine_similarity": 1}
GUARDS = {"clamp", "clip", "clamp_min", "where", "masked_fill", "maximum"}


class Poisoned(torch.autograd.Function):
    """Identity whose gradient is NaN where `mask` is true."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0].masked_fill(mask, torch.nan), None


def proposals(op: Op) -> Iterator[Proposal]:
    """Mutations of an operation, each of which gives NaN for some gradients."""
    if op.name in DIMENSION or op.name == "cdist":
        yield op.instead(AT_ZERO, poisoned)
    for i, x in enumerate(op.args if op.name in GUARDS else ()):
        if of_reals(x) and of_reals(op.output) and x.shape == op.output.shape:
            yield op.instead(UNGUARDED, operand(i))


def poisoned(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute a norm, a deviation or distances, with a gradient of NaN where it is 0."""
    name = function.__name__.strip("_")
    if name == "cdist":
        x, y, *others = args
        near = function(x.detach(), y.detach(), *others, **kwargs) == 0
        x, y = (Poisoned.apply(a, near.any(axis)[..., None].expand_as(a)) for a, axis in ((x, -1), (y, -2)))
        return function(x, y, *others, **kwargs)
    at = DIMENSION[name]
    axes = args[at] if len(args) > at else kwargs.get("dim", kwargs.get("axis", BY_DEFAULT.get(name)))
    for i in (0, 1) if name == "cosine_similarity" else (0,):
        args = (*args[:i], Poisoned.apply(args[i], of_zeros(args[i], axes, centered=name == "std")), *args[i + 1 :])
    return function(*args, **kwargs)


def of_zeros(x: torch.Tensor, axes: Any, *, centered: bool) -> torch.Tensor:
    """Mask of the entries beside which all others along the axes (None: all of them) are 0, or, if `centered`, equal."""
    along = tuple(range(x.ndim)) if axes is None or isinstance(axes, bool) else axes
    off = x.detach() - x.detach().mean(along, keepdim=True) if centered else x.detach()
    return (off.abs().amax(along, keepdim=True) == 0).expand_as(x)
