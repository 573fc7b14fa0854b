"""What a layer is given for its kind, as a mask and rotary tables, taken from what another layer of the same list is given."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_masks import is_new_mask
from jaxformer.parity.explain.alterations.rerun import Rerun, running
from jaxformer.parity.explain.alterations.rotary_tables import pairs_in

Given = dict[str, list[torch.Tensor]]
"""What each layer is given, by its path."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """One of each kind, where more than one array differs; the first array is what the layer works on."""
    own = arrays_in(rerun.arguments)[1:]
    seen = [own]
    for path, others in given_to(rerun, beside(rerun)).items() if own else ():
        if [x.shape for x in others] != [x.shape for x in own] or any(are_equal(others, each) for each in seen):
            continue
        seen.append(others)
        changed = {i: x for i, x in enumerate(others) if not torch.equal(x, own[i])}
        what = kinds_of(own, [*changed])
        if len(what) > 1:
            says = f"{' and '.join(what)} as given", f"those that {path} is given"
            yield Alteration(*says, partial(rerun.given_inputs, {i + 1: x for i, x in changed.items()}))


def beside(rerun: Rerun) -> list[str]:
    """Paths that differ from the call's in the number of the layer alone."""
    own = rerun.owner.path
    if rerun.owner == CALL or rerun.owner.call or not (numbers := [*re.finditer(r"(?<=\.)\d+(?=\.|$)", f".{own}")]):
        return []
    start, end = (each - 1 for each in numbers[0].span())
    pattern = re.compile(re.escape(own[:start]) + r"\d+" + re.escape(own[end:]))
    return [name for name, _ in rerun.model.named_modules() if name != own and pattern.fullmatch(name)]


def given_to(rerun: Rerun, paths: list[str]) -> Given:
    """In one run of the whole model: all arrays but the first."""
    found: Given = {}

    def watched(path: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
        found.setdefault(path, [x.clone() for x in arrays_in((args, kwargs))[1:]])
        return forward(*args, **kwargs)

    with running(), ExitStack() as stack:
        for path in paths:
            module = rerun.model.get_submodule(path)
            forward = module.forward
            stack.enter_context(mock.patch.object(module, "forward", wraps(forward)(partial(watched, path, forward))))
        if paths:
            rerun.run_model()
    return found


def are_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether all arrays of two lists are."""
    return len(some) == len(others) and all(map(torch.equal, some, others))


def kinds_of(arrays: list[torch.Tensor], at: list[int]) -> list[str]:
    """What those are among the arrays: 'mask', 'rotary tables', or by their number."""
    tables = {i for pair in pairs_in(arrays) for i in pair}
    names = ("rotary tables" if i in tables else "mask" if is_new_mask(arrays[i], []) else f"array {i + 2}" for i in at)
    return [*dict.fromkeys(names)]
