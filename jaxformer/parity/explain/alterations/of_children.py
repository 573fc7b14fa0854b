"""What may be otherwise in what a module's children give: exchanged, or left out."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch

from jaxformer.parity.capture.call_sites import CALL, Site
from jaxformer.parity.capture.module_paths import parent
from jaxformer.parity.explain.alterations.altered import Alteration, together
from jaxformer.parity.explain.alterations.of_modules import replaced
from jaxformer.parity.explain.alterations.other_ids import other_ids
from jaxformer.parity.explain.alterations.rerun import Rerun


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Of the children that jax calls too, and of the others."""
    yield from left_out(rerun)
    tensors = given_by(rerun)
    names = {site: name_of(rerun, site) for site in tensors}
    for site, tensor in tensors.items():
        inputs = rerun.inputs.get(site)
        if inputs is not None and inputs.shape == tensor.shape:
            yield Alteration(
                f"{names[site]} as it is", f"{names[site]} left out", lambda s=site, x=inputs: rerun.given_outputs({s: x})
            )
    for site, tensor in tensors.items():
        yield from other_rows(rerun, site, names[site], tensor)
    for a, b in combinations(tensors, 2):
        if tensors[a].shape == tensors[b].shape:
            said = f"{names[a]} and {names[b]} as they are", "the two exchanged"
            yield Alteration(*said, lambda a=a, b=b: rerun.given_outputs({a: tensors[b], b: tensors[a]}))
    for a in tensors:
        for b in tensors:
            if a != b and tensors[a].shape == tensors[b].shape:
                said = f"{names[a]} as it is", f"{names[b]} in the place of {names[a]}"
                yield Alteration(*said, lambda a=a, b=b: rerun.given_outputs({a: tensors[b]}))
    yield from backwards(rerun, tensors)
    yield from behind(rerun)


def given_by(rerun: Rerun) -> dict[Site, torch.Tensor]:
    """What children gave, where it is one array of real numbers."""
    return {site: it for site, it in rerun.given.items() if isinstance(it, torch.Tensor) and it.is_floating_point()}


def name_of(rerun: Rerun, site: Site) -> str:
    """Of a child, in the call that runs again."""
    return str(site).removeprefix(f"{rerun.owner.path}.")


def backwards(rerun: Rerun, tensors: dict[Site, torch.Tensor]) -> Iterator[Alteration]:
    """Everything along the positions `B T ...` begins at the last one, as a loop that runs backwards."""
    length = rerun.wanted.shape[1] if rerun.wanted.ndim > 2 else 0
    along = {site: x.flip(1) for site, x in tensors.items() if x.ndim > 2 and x.shape[1] == length > 1}
    if along:
        says = "goes from the first position to the last", "from the last to the first"
        yield Alteration(*says, lambda: together(rerun.given_outputs(along), rerun.followed_by(lambda x: x.flip(1))))


def left_out(rerun: Rerun) -> Iterator[Alteration]:
    """One of those that jax does not call."""
    own, inner = path_of(rerun), {site.path for site in rerun.given}
    for name, module in rerun.module.named_children():
        if (f"{own}.{name}" if own else name) not in inner:
            yield Alteration(
                f"{name} as it is", f"{name} left out", lambda module=module: replaced(module, "forward", its_input)
            )


def path_of(rerun: Rerun) -> str:
    """Of the module that runs again; '' is the model."""
    return "" if rerun.owner == CALL else rerun.owner.path


def its_input(x: Any, *others: Any, **named: Any) -> Any:
    """Its first argument."""
    return x


def other_rows(rerun: Rerun, site: Site, name: str, given: torch.Tensor) -> Iterator[Alteration]:
    """Of a table, whose rows a child looks up."""
    table, ids = getattr(rerun.model.get_submodule(site.path), "weight", None), rerun.inputs.get(site)
    if table is None or table.ndim != 2 or ids is None or ids.is_floating_point() or not ids.numel():
        return
    if given.shape != (*ids.shape, table.shape[1]):
        return
    first = (table == given.reshape(-1, table.shape[1])[0]).all(-1).nonzero().flatten()
    rows = ids + (first[0] - ids.flatten()[0] if len(first) else 0)
    if rows.min() < 0 or rows.max() >= len(table) or not torch.equal(table[rows], given):
        return
    for says, other in other_ids(rows, len(table)):
        said = f"{name} of its rows", f"{name} of rows {says}"
        yield Alteration(*said, lambda other=other: rerun.given_outputs({site: table[other]}))


def behind(rerun: Rerun) -> Iterator[Alteration]:
    """What one of the modules inside makes of the array itself."""
    beside, own = parent(rerun.place.site.path), path_of(rerun)
    for name, module in rerun.model.named_modules():
        inner = bool(own == parent(parent(name)) and any(True for _ in module.parameters()) and not any(module.children()))
        if name and (parent(name) in (beside, own) or inner):
            says = name.removeprefix(f"{own}.")
            yield Alteration("the array as it is", f"{says} of it", lambda module=module: rerun.followed_by(module))
