"""What may be otherwise in norms of queries and keys: all of them left out, over each head or over all heads at once, and one
that values go through too."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Inside, together
from jaxformer.parity.explain.alterations.of_children import its_input
from jaxformer.parity.explain.alterations.of_modules import replaced
from jaxformer.parity.explain.alterations.of_turned_norms import Norm, of_modules
from jaxformer.parity.explain.alterations.rerun import Rerun


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Of all norms of one kind together."""
    kinds: dict[type, list[Norm]] = {}
    for norm in of_modules(rerun):
        kinds.setdefault(type(norm.made), []).append(norm)
    for norms in kinds.values():
        names = " and ".join(norm.name for norm in norms)
        if len(norms) > 1:
            yield Alteration(f"{names} as they are", f"{names} left out", partial(all_as, norms, its_input))
        yield from over_others(rerun, norms, names)
        for norm in norms:
            yield from of_others(rerun, norm)


def all_as(norms: list[Norm], forward: Any) -> Inside:
    """Inside, all of them do something else."""
    return together(*(replaced(norm.made, "forward", forward) for norm in norms))


def over_others(rerun: Rerun, norms: list[Norm], names: str) -> Iterator[Alteration]:
    """Over parts of what they normalise, as over each head of the whole width; or over two axes, as over all heads."""
    if not all(is_norm(norm, norm.x.shape[-1:]) for norm in norms):
        return
    widths = {run.output.shape[-1] for each in rerun.listed for run in each.runs if isinstance(run.output, torch.Tensor)}
    for width in sorted(widths):
        if all(1 < width < norm.x.shape[-1] and norm.x.shape[-1] % width == 0 for norm in norms):
            yield normed(norms, names, f"over {width} units each, as of one head", (width,))
    for axis in (-2, 1) if all(norm.x.ndim > 3 for norm in norms) else ():
        yield normed(norms, names, f"over its last axis and axis {axis % norms[0].x.ndim} together, as of all heads", axis)


def normed(norms: list[Norm], names: str, says: str, over: tuple[int] | int) -> Alteration:
    """All of them, over something else."""
    those = [replaced_by(norm, over) for norm in norms]
    return Alteration(f"{names} over {norms[0].x.shape[-1]} units", says, lambda: together(*(each() for each in those)))


def replaced_by(norm: Norm, over: tuple[int] | int) -> Any:
    """Inside, the norm goes over parts of that width, or over another axis too."""
    return lambda: replaced(norm.made, "forward", partial(formula, norm, over))


def formula(norm: Norm, over: tuple[int, ...] | int, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Of its weights: RMSNorm's, or LayerNorm's, over the last axis in parts, or over it and another one."""
    axes: Any = -1 if isinstance(over, tuple) else (-1, over)
    parts = x.unflatten(-1, (-1, *over)) if isinstance(over, tuple) else x
    if subtracts_mean(norm):
        parts = parts - parts.mean(axes, keepdim=True)
    y = (parts / (parts.square().mean(axes, keepdim=True) + epsilon(norm)).sqrt()).reshape(x.shape)
    weight, bias = (getattr(norm.made, name, None) for name in ("weight", "bias"))
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def subtracts_mean(norm: Norm) -> bool:
    """Whether one more is nothing to it."""
    return torch.allclose(norm.forward(norm.x + 1), norm.y, rtol=1e-9, atol=1e-9)


def epsilon(norm: Norm) -> float:
    """As modules call it."""
    held = vars(norm.made)
    return next((held[name] for name in ("eps", "epsilon", "variance_epsilon") if isinstance(held.get(name), float)), 0.0)


def is_norm(norm: Norm, width: tuple[int, ...]) -> bool:
    """Whether the formula gives what the module does."""
    return torch.allclose(formula(norm, width, norm.x), norm.y, rtol=1e-9, atol=1e-9)


def of_others(rerun: Rerun, norm: Norm) -> Iterator[Alteration]:
    """What other children give goes through it too, as values through the norm of keys."""
    for site, x in rerun.given.items():
        alike = isinstance(x, torch.Tensor) and x.shape == norm.x.shape
        if alike and not torch.equal(x, norm.x) and not torch.equal(x, norm.y):
            name = str(site).removeprefix(f"{rerun.owner.path}.")
            said = f"{name} as it is", f"{norm.name} of {name}"
            yield Alteration(*said, lambda site=site, x=x: rerun.given_outputs({site: norm.forward(x)}))
