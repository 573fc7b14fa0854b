"""What may be otherwise in what a module's children give: exchanged, left out, or turned to other positions."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import torch

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.alterations.rotary_tables import Rotary, rotary_of

Given = dict[Site, Any]


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of the children that jax calls too."""
    tensors = {site: it for site, it in rerun.given.items() if isinstance(it, torch.Tensor) and it.is_floating_point()}
    names = {site: str(site).removeprefix(f"{rerun.owner.path}.") for site in tensors}
    for site, tensor in tensors.items():
        inputs = rerun.inputs.get(site)
        if inputs is not None and inputs.shape == tensor.shape:
            yield Alteration(
                f"{names[site]} as it is", f"{names[site]} left out", lambda s=site, x=inputs: given(rerun, {s: x})
            )
    for a, b in combinations(tensors, 2):
        if tensors[a].shape == tensors[b].shape:
            said = f"{names[a]} and {names[b]} as they are", "the two exchanged"
            yield Alteration(*said, lambda a=a, b=b: given(rerun, {a: tensors[b], b: tensors[a]}))
    for a in tensors:
        for b in tensors:
            if a != b and tensors[a].shape == tensors[b].shape:
                said = f"{names[a]} as it is", f"{names[b]} in the place of {names[a]}"
                yield Alteration(*said, lambda a=a, b=b: given(rerun, {a: tensors[b]}))
    if rotary := rotary_of(rerun):
        yield from turned(rerun, rotary, tensors, names)


def turned(rerun: Rerun, rotary: Rotary, tensors: Given, names: dict[Site, str]) -> Iterator[Alteration]:
    """Queries and keys as other pairs have them, and each of them at other positions."""
    width = rotary.width
    heads = {site: x for site, x in tensors.items() if x.shape[-1] % width == 0 and x.ndim > 2}
    for says, order, tables in rotary.pairings():
        for those in [*combinations(heads, 2)][::-1]:
            others = {site: by_head(heads[site], width)[..., order].reshape(heads[site].shape) for site in those}
            yield Alteration(rotary.pairs, says, lambda others=others, tables=tables: given(rerun, others, tables))
    for site, x in heads.items():
        for steps, says in ((1, "one position later"), (-1, "one position earlier")):
            other = rotary.turned(x, torch.full((x.shape[1],), float(steps), dtype=x.dtype))
            yield Alteration(
                f"{names[site]} at its positions", f"{names[site]} {says}", lambda s=site, x=other: given(rerun, {s: x})
            )
        forth, back = (rotary.turned(x, sense * rotary.positions) for sense in (1, -1))
        yield Alteration(
            f"{names[site]} not rotated", f"{names[site]} rotated too", lambda s=site, x=forth: given(rerun, {s: x})
        )
        yield Alteration(f"{names[site]} rotated", f"{names[site]} not rotated", lambda s=site, x=back: given(rerun, {s: x}))


def by_head(x: torch.Tensor, width: int) -> torch.Tensor:
    """`... D` as `... N H`."""
    return x.reshape(*x.shape[:-1], -1, width)


@contextmanager
def given(rerun: Rerun, others: Given, inputs: dict[int, Any] | None = None) -> Iterator[None]:
    """Inside, children give something else, and the module itself may be given other arrays."""
    before = dict(rerun.given)
    rerun.given |= others
    try:
        with rerun.given_inputs(inputs or {}):
            yield
    finally:
        rerun.given = before
