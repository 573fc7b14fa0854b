"""What may be otherwise in norms of queries and keys: all of them left out, over each head or over all heads at once, and one
that values go through too."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.capture.module_paths import parent
from jaxformer.parity.explain.alterations.altered import Alteration, Inside, together
from jaxformer.parity.explain.alterations.of_children import its_input
from jaxformer.parity.explain.alterations.of_layers import starred
from jaxformer.parity.explain.alterations.of_modules import replaced
from jaxformer.parity.explain.alterations.of_turned_norms import Norm, of_modules
from jaxformer.parity.explain.alterations.rerun import Rerun

NEAR = 1e-9


class Over(NamedTuple):
    """What is normalised together."""

    width: int | None = None
    """Units of the last axis; None: all of them."""
    axes: tuple[int, ...] = (-1,)


WHOLE = Over()


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Of all norms of one kind that stand beside each other, in every layer."""
    kinds: dict[Any, list[Norm]] = {}
    for norm in of_modules(rerun):
        kinds.setdefault((type(norm.made), starred(parent(norm.name))), []).append(norm)
    for norms in kinds.values():
        names = " and ".join(dict.fromkeys(starred(norm.name) for norm in norms))
        if len(norms) > 1:
            yield Alteration(f"{names} as they are", f"{names} left out", partial(left_out, norms))
        for name, those in by_name(norms).items():
            yield Alteration(f"{name} as it is", f"{name} left out", partial(left_out, those))
        yield from over_others(rerun, norms, names)
        for norm in norms:
            yield from of_others(rerun, norm)


def by_name(norms: list[Norm]) -> dict[str, list[Norm]]:
    """Those of one name in several layers, where there are others."""
    found: dict[str, list[Norm]] = {}
    for norm in norms:
        found.setdefault(starred(norm.name), []).append(norm)
    return {name: those for name, those in found.items() if 1 < len(those) < len(norms)}


def left_out(norms: list[Norm]) -> Inside:
    """Inside, each gives what it is given."""
    return together(*(replaced(norm.made, "forward", its_input) for norm in norms))


def over_others(rerun: Rerun, norms: list[Norm], names: str) -> Iterator[Alteration]:
    """Over parts of what they normalise, as over each head of the whole width; or over two axes, as over all heads."""
    if not all(is_over_the_last(norm) and same_numbers(formula(norm, WHOLE, norm.x), norm.y) for norm in norms):
        return
    said = f"{names} over {norms[0].x.shape[-1]} units"
    outputs = (run.output for each in rerun.listed for run in each.runs)
    widths = {x.shape[-1] for x in outputs if isinstance(x, torch.Tensor) and x.ndim}
    for width in sorted(widths):
        if all(1 < width < norm.x.shape[-1] and norm.x.shape[-1] % width == 0 for norm in norms):
            yield Alteration(said, f"over {width} units each, as of one head", partial(all_over, norms, Over(width)))
    for axis in (1, 2) if all(norm.x.ndim == 4 for norm in norms) else ():
        says = f"over its last axis and axis {axis} together, as of all heads"
        yield Alteration(said, says, partial(all_over, norms, Over(axes=(axis, -1))))


def is_over_the_last(norm: Norm) -> bool:
    """Whether its weight fits the last axis, as that of a norm of channels in front does not."""
    weight = getattr(norm.made, "weight", None)
    return weight is None or weight.shape == norm.x.shape[-1:]


def all_over(norms: list[Norm], over: Over) -> Inside:
    """Inside, all of them normalise something else."""
    return together(*(replaced(norm.made, "forward", partial(formula, norm, over)) for norm in norms))


def formula(norm: Norm, over: Over, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """RMSNorm's or LayerNorm's, with the module's weights."""
    parts = x.unflatten(-1, (-1, over.width)) if over.width else x
    if subtracts_mean(norm):
        parts = parts - parts.mean(over.axes, keepdim=True)
    y = (parts / (parts.square().mean(over.axes, keepdim=True) + epsilon(norm)).sqrt()).reshape(x.shape)
    weight, bias = (getattr(norm.made, name, None) for name in ("weight", "bias"))
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def subtracts_mean(norm: Norm) -> bool:
    """Whether one more is nothing to it."""
    return same_numbers(norm.forward(norm.x + 1), norm.y)


def epsilon(norm: Norm) -> float:
    """As modules call it."""
    held = vars(norm.made)
    return next((held[name] for name in ("eps", "epsilon", "variance_epsilon") if isinstance(held.get(name), float)), 0.0)


def same_numbers(x: torch.Tensor, y: torch.Tensor) -> bool:
    """But for rounding."""
    return torch.allclose(x, y, rtol=NEAR, atol=NEAR)


def of_others(rerun: Rerun, norm: Norm) -> Iterator[Alteration]:
    """What other children give goes through it too, as values through the norm of keys."""
    for site, x in rerun.given.items():
        alike = isinstance(x, torch.Tensor) and x.shape == norm.x.shape
        if alike and not torch.equal(x, norm.x) and not torch.equal(x, norm.y):
            name = str(site).removeprefix(f"{rerun.owner.path}.")
            said = f"{name} as it is", f"{norm.name} of {name}"
            yield Alteration(*said, lambda site=site, x=x: rerun.given_outputs({site: norm.forward(x)}))
