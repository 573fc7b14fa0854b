"""What may be otherwise in where torch's modules stand: a norm before or behind what it belongs to, layers in another order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.capture.call_records import replaced as replaced_in
from jaxformer.parity.capture.module_paths import below
from jaxformer.parity.explain.alterations.altered import Alteration, Inside, together
from jaxformer.parity.explain.alterations.of_children import its_input, path_of
from jaxformer.parity.explain.alterations.of_layers import starred
from jaxformer.parity.explain.alterations.of_modules import held, replaced
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_MODULES = 12
"""That may stand elsewhere."""
MOST_LAYERS = 64
LISTS = (torch.nn.ModuleList, torch.nn.Sequential)
ORDERS = {
    "its first array for its second": (0, 0),
    "its second array for its first": (1, 1),
    "its first two arrays exchanged": (1, 0),
    "its third array for its second": (0, 2, 2),
    "its first array for its third": (0, 1, 0),
    "its second array for its third": (0, 1, 1),
    "its last two arrays exchanged": (0, 2, 1),
}
"""Which of its arrays a module may be given first."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """The plain ones first, but for `layers`; one that is `moved` alone is left to the last."""
    yield from all_moved(rerun)
    yield from arguments(rerun)


def layers(rerun: Rerun) -> Iterator[Alteration]:
    """Of lists of modules, the same of every layer at once: another order, one left out, one several times."""
    found: dict[tuple[str, int], list[tuple[str, Any]]] = {}
    for name, module in rerun.module.named_modules():
        if isinstance(module, LISTS) and 1 < len(module) <= MOST_LAYERS:
            found.setdefault((starred(name), len(module)), []).append((name, [*module]))
    for (name, length), several in found.items():
        name, lists = several[0][0] if len(several) == 1 else name, [each for _, each in several]
        for says, i in (("first", 0), ("last", -1)) if all(shapes_of(*each) for each in lists) else ():
            said = f"{name} with weights of their own", f"{name} with those of the {says} every time"
            yield Alteration(*said, lambda lists=lists, i=i: together(*(with_weights(each, each[i]) for each in lists)))
        modules = [rerun.module.get_submodule(each) for each, _ in several]
        for says, order in orders(length).items():
            yield Alteration(f"{name} in their order", f"{name} {says}", partial(reordered, modules, order))


def orders(n: int) -> dict[str, list[int]]:
    """Of so many layers: which ones run."""
    every = [*range(n)]
    found = {"from the last to the first": every[::-1], "the first every time": [0] * n, "the last every time": [n - 1] * n}
    found |= {"without the first": every[1:], "without the last": every[:-1]}
    return found | {f"{i} and {i + 1} exchanged": [*every[:i], i + 1, i, *every[i + 2 :]] for i in every[:-1]}


def reordered(lists: list[Any], order: list[int]) -> Inside:
    """Inside, each list has these of its own."""
    changed = ((each, {str(i): each[n] for i, n in enumerate(order)}) for each in lists)
    return together(*(replaced(each, "_modules", modules) for each, modules in changed))


def shapes_of(*layers: Any) -> bool:
    """Whether all of them have parameters of the same shapes."""
    return len({tuple(tuple(x.shape) for x in layer.parameters()) for layer in layers}) == 1


def with_weights(layers: list[Any], one: Any) -> Inside:
    """Inside, all of them have the weights of one."""
    return together(*(held(x, y) for layer in layers for x, y in zip(layer.parameters(), one.parameters(), strict=True)))


def arguments(rerun: Rerun) -> Iterator[Alteration]:
    """Of modules that are given several arrays, as queries, keys and values: one of them for another, or two exchanged."""
    named = ((name, each) for name, each in rerun.module.named_modules() if name)
    modules = [
        (name, each) for name, each in named if len([*each.children()]) > 1 or isinstance(each, torch.nn.MultiheadAttention)
    ]
    for name, module in modules[:MOST_MODULES]:
        for says, order in ORDERS.items():
            yield Alteration(f"gives {name} what it does", f"gives {name} {says}", partial(given, module, order))


@contextmanager
def given(module: Any, order: tuple[int, ...]) -> Iterator[None]:
    """Inside, a module is given others of its own arrays for the first two."""
    forward = module.forward

    def called(*args: Any, **kwargs: Any) -> Any:
        return forward(*(args[i] for i in order), *args[len(order) :], **kwargs)

    with replaced(module, "forward", called):
        yield


def all_moved(rerun: Rerun) -> Iterator[Alteration]:
    """Every norm behind the sum that follows it, or before the branch that the sum adds."""
    modules, sums = norms(rerun), sums_in(rerun)
    said = f"{' and '.join(modules)} where they are"
    if len(modules) == len(sums) > 1:
        yield moved_together(
            said, "each behind its sum", [partial(elsewhere, m, s, None) for m, s in zip(modules.values(), sums, strict=True)]
        )
    firsts = first_modules(rerun, {full_path(rerun, name) for name in modules})
    if len(modules) == len(firsts) > 1:
        yield moved_together(
            said, "each before its branch", [partial(before, m, f) for m, f in zip(modules.values(), firsts, strict=True)]
        )


def moved_together(torch_says: str, jax_says: str, every: list[Callable[[], Inside]]) -> Alteration:
    """Several modules at once."""
    return Alteration(torch_says, jax_says, lambda: together(*(each() for each in every)))


def moved(rerun: Rerun) -> Iterator[Alteration]:
    """A module that keeps a shape, as a norm, left out, before or behind another one, behind a sum, or on one of its parts."""
    sums, those = sums_in(rerun), dict([*norms(rerun).items()][:MOST_MODULES])
    for name, module in those.items():  # elsewhere is nowhere, if that comes behind the array
        yield Alteration(f"{name} as it is", f"{name} left out", partial(replaced, module, "forward", its_input))
    for name, module in sorted(those.items(), key=lambda each: each[0].count(".")):  # the outermost first
        for other, beside in neighbours(rerun, full_path(rerun, name)):
            yield Alteration(f"{other} as it is", f"{name} behind {other} too", partial(behind_too, module, beside))
    for name, module in those.items():
        says = f"{name} where it is"
        for total in sums:
            for where, at in (("behind", None), ("on the first operand of", 0), ("on the second operand of", 1)):
                yield Alteration(says, f"{name} {where} {total.source}", partial(elsewhere, module, total, at))
        for other, beside in neighbours(rerun, full_path(rerun, name)):
            for where, way in (("before", before), ("behind", behind)):
                yield Alteration(says, f"{name} {where} {other}", partial(way, module, beside))


def norms(rerun: Rerun) -> dict[str, Any]:
    """Modules that keep a shape, by their names: of every layer, but not of another one of them, as one for each head."""
    found: dict[str, Any] = {}
    for name, each in rerun.module.named_modules():
        inner = any(below(name, other) for other in found)
        if name and not inner and keeps_a_shape(each) and runs(rerun, full_path(rerun, name)):
            found[name] = each
    kinds = [*dict.fromkeys(map(starred, found))][:MOST_MODULES]
    return {name: each for name, each in found.items() if starred(name) in kinds}


def runs(rerun: Rerun, path: str) -> bool:
    """Whether a module runs again with the call's own code, and not inside of a call whose output stays."""
    made = rerun.place.site.path
    around = (each.path for each in rerun.borders if below(path, each.path) and below(each.path, path_of(rerun)))
    return all(each == made or below(made, each) for each in around)


def full_path(rerun: Rerun, name: str) -> str:
    """Of a module inside, in the model."""
    own = path_of(rerun)
    return f"{own}.{name}" if own else name


def sums_in(rerun: Rerun) -> list[Operation]:
    """Of two arrays of one shape."""
    return [each for each in rerun.every_operation if each.name == "add" and len(each.runs) == 1 and are_alike(each)]


def first_modules(rerun: Rerun, norms: set[str]) -> list[Any]:
    """What is called first, and first behind each of the norms."""
    called = [site.path for site in rerun.later]
    starts = [path for last, path in pairwise(["", *called]) if path not in norms and (not last or last in norms)]
    return [rerun.model.get_submodule(path) for path in starts]


def keeps_a_shape(module: Any) -> bool:
    """Whether it is a norm, or another function with vectors alone."""
    own = [*module.parameters()]
    return bool(own) and all(each.squeeze().ndim < 2 for each in own) and not isinstance(module, LISTS)


def are_alike(operation: Operation) -> bool:
    """Whether an operation has two operands of its output's shape."""
    return [getattr(each, "shape", None) for each in operation.args[:2]] == [operation.output.shape] * 2


def neighbours(rerun: Rerun, path: str) -> Iterator[tuple[str, Any]]:
    """Modules beside one, and beside those around it."""
    own = path_of(rerun)
    while path not in ("", own):
        around, _, last = path.rpartition(".")
        for name, module in rerun.model.get_submodule(around).named_children():
            if name != last:
                yield f"{around}.{name}".removeprefix(own).removeprefix("."), module
        path = around


@contextmanager
def elsewhere(module: Any, total: Operation, at: int | None) -> Iterator[None]:
    """Inside, a module is left out in its place, and comes behind a sum, or before one of its operands."""
    forward = module.forward

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        if at is None:
            return forward(function(*args, **kwargs))
        return function(*(forward(each) if i == at else each for i, each in enumerate(args)), **kwargs)

    with together(replaced(module, "forward", its_input), Altered({total.place: compute})):
        yield


@contextmanager
def before(module: Any, other: Any) -> Iterator[None]:
    """Inside, a module is left out in its place, and comes before another one."""
    forward, following = module.forward, other.forward

    def both(*args: Any, **kwargs: Any) -> Any:
        first, *others = arrays_in((args, kwargs))
        args, kwargs = replaced_in((args, kwargs), [first, *others], [forward(first), *others])
        return following(*args, **kwargs)

    with put_beside(module, other, both):
        yield


@contextmanager
def behind(module: Any, other: Any) -> Iterator[None]:
    """Inside, a module is left out in its place, and comes behind another one."""
    forward, first = module.forward, other.forward
    with put_beside(module, other, lambda *args, **kwargs: forward(first(*args, **kwargs))):
        yield


@contextmanager
def behind_too(module: Any, other: Any) -> Iterator[None]:
    """Inside, a module comes behind another one too."""
    forward, first = module.forward, other.forward
    with replaced(other, "forward", lambda *args, **kwargs: forward(first(*args, **kwargs))):
        yield


def put_beside(module: Any, other: Any, both: Callable[..., Any]) -> Inside:
    """Inside, a module is left out in its place, and another one is both."""
    return together(replaced(module, "forward", its_input), replaced(other, "forward", both))
