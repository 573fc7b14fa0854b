"""What a layer is given for its kind, as a mask and rotary tables, taken from what another layer of the same list is given."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_masks import is_new_mask
from jaxformer.parity.explain.alterations.rerun import Arguments, Rerun, running
from jaxformer.parity.explain.alterations.rotary_tables import pairs_in

Given = dict[Any, Any]
"""Arguments by their names, or by their numbers."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """One of each kind, where more than one argument differs; the first array is what the layer works on."""
    own = named(rerun.arguments)
    first = next((name for name, value in own.items() if arrays_in(value)), None)
    seen: list[Given] = []
    for path, arguments in given_to(rerun, beside(rerun)).items():
        other = named(arguments)
        changed = {name: other[name] for name in own if name != first and name in other and is_other(own[name], other[name])}
        if any(changed.keys() == each.keys() and not any(map(is_other, changed.values(), each.values())) for each in seen):
            continue
        seen.append(changed)
        what = kinds_of(own, changed)
        if len(what) > 1:
            says = f"{' and '.join(what)} as given", f"those that {path} is given"
            yield Alteration(*says, partial(given, rerun, own | changed))


def named(arguments: Arguments) -> Given:
    """Of a call."""
    return {**dict(enumerate(arguments[0])), **arguments[1]}


@contextmanager
def given(rerun: Rerun, others: Given) -> Iterator[None]:
    """Inside, the call has these arguments."""
    before = rerun.arguments
    places = range(len(before[0]))
    rerun.arguments = tuple(others[i] for i in places), {name: value for name, value in others.items() if name not in places}
    try:
        yield
    finally:
        rerun.arguments = before


def beside(rerun: Rerun) -> list[str]:
    """Paths that differ from the call's in the number of the layer alone."""
    own = rerun.owner.path
    if rerun.owner == CALL or rerun.owner.call or not (number := re.search(r"(?:^|(?<=\.))\d+(?=\.|$)", own)):
        return []
    start, end = number.span()
    pattern = re.compile(re.escape(own[:start]) + r"\d+" + re.escape(own[end:]))
    return [name for name, _ in rerun.model.named_modules() if name != own and pattern.fullmatch(name)]


def given_to(rerun: Rerun, paths: list[str]) -> dict[str, Arguments]:
    """In one run of the whole model, by the paths of modules."""
    found: dict[str, Arguments] = {}

    def watched(path: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
        found.setdefault(path, (args, kwargs))
        return forward(*args, **kwargs)

    with running(), ExitStack() as stack:
        for path in paths:
            module = rerun.model.get_submodule(path)
            forward = module.forward
            stack.enter_context(mock.patch.object(module, "forward", wraps(forward)(partial(watched, path, forward))))
        if paths:
            rerun.run_model()
    return found


def is_other(one: Any, other: Any) -> bool:
    """Whether two arguments are arrays, or several, or none, and are not the same."""
    if not all(each is None or isinstance(each, torch.Tensor) or holds_arrays(each) for each in (one, other)):
        return False
    some, others = arrays_in(one), arrays_in(other)
    return len(some) != len(others) or not all(map(torch.equal, some, others))


def holds_arrays(value: Any) -> bool:
    """Whether it is a tuple or a list of them."""
    return isinstance(value, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in value)


def kinds_of(own: Given, changed: Given) -> list[str]:
    """What those are among the arguments: 'mask', 'rotary tables', or by their names."""
    arrays = arrays_in([*own.values()])
    tables = {id(arrays[i]) for pair in pairs_in(arrays) for i in pair}
    found = dict[str, None]()
    for name, value in changed.items():
        both = [*arrays_in(own[name]), *arrays_in(value)]
        if any(id(x) in tables for x in both):
            found["rotary tables"] = None
        else:
            found["mask" if any(is_new_mask(x, []) for x in both) else str(name)] = None
    return [*found]
