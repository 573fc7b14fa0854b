"""Mutations that exchange modules or tensors that are alike, take one for another, or rotate lists; of lists of layers (their
order, shared weights), and of the outputs of a module's children."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations, permutations
from typing import Any

import torch

from jaxformer.parity.diagnose.modules import LISTS, full_path, given_by, held, its_input, name_of, path_of, replaced, starred
from jaxformer.parity.diagnose.mutation import DELETES, Change, Edit, Proposal, grouped, propose, together
from jaxformer.parity.diagnose.operators.parameters import all_of
from jaxformer.parity.diagnose.operators.positions import other_ids, worded
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.trace.call_sites import CALL, Site, below, join, last, parent

MOST_CHILDREN = 6
MOST_TENSORS = 8
MOST_TWINS = 4
"""Largest number of modules of one kind and size beside each other."""
ORDERED = (*LISTS, torch.nn.ParameterList)

PLACES = {"here": "uses {0} and {1} as named", "everywhere": "uses {0} and {1} as named in every {kind}"}
SWAPPED = "exchanges the two"
CHILDREN = Change("exchange.children", SWAPPED, PLACES, subjects=2, reroutes=True)
TENSORS = Change("exchange.tensors", SWAPPED, PLACES, subjects=2, reroutes=True)
TWINS = Change("exchange.twins", SWAPPED, PLACES["here"], subjects=2, reroutes=True)
TWIN = Change("exchange.twin", "uses {1} in its place", "uses {0}")

Named = Sequence[tuple[str, Any]]
"""Modules or tensors with their names."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations that exchange children or tensors in all modules of one kind, or that reverse positions."""
    own = path_of(replay)
    inner = {site.path for site in replay.given} - {own, CALL.path}
    every = ((name, join(own, name), module) for name, module in replay.module.named_modules())
    some = ((name, module) for name, path, module in every if not any(path == each or below(path, each) for each in inner))
    for kind, those in grouped(some, lambda each: type(each[1])).items():
        if not issubclass(kind, ORDERED):
            yield from siblings(those)
    yield from backwards(replay)


def siblings(those: Named) -> Iterator[Proposal]:
    """Mutations that exchange two children of one kind and shape, or two tensors of one shape, in every one of the modules."""
    first = those[0][1]
    children = [(key, each) for key, each in first.named_children() if shapes(each)][:MOST_CHILDREN]
    tensors = [(key, each) for key, each in first._parameters.items() if each is not None and each.ndim][:MOST_TENSORS]
    for (one, a), (other, b) in combinations(children, 2):
        if type(a) is type(b) and shapes(a) == shapes(b):
            yield exchanged(CHILDREN, children_exchanged, those, one, other)
    for (one, a), (other, b) in combinations(tensors, 2):
        if a.shape == b.shape and not torch.equal(a, b):
            yield exchanged(TENSORS, tensors_exchanged, those, one, other)


def exchanged(change: Change, edit: Callable[..., Edit], those: Named, one: str, other: str) -> Proposal:
    """Propose to exchange two children or tensors, given by their names, in each of the modules."""
    name, first = those[0]
    args: dict[str, Any] = {"how": "everywhere", "kind": type(first).__name__} if len(those) > 1 else {"how": "here"}
    name = "" if len(those) > 1 else name
    edits = partial(all_of, [partial(edit, module, one, other) for _, module in those])
    return propose(change, (join(name, one), join(name, other)), edits, **args)


def shapes(module: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of a module's parameters."""
    return tuple(tuple(each.shape) for each in module.parameters())


def children_exchanged(module: Any, one: str, other: str) -> Edit:
    """Edit that exchanges two children of a module."""
    children = module._modules
    return replaced(module, "_modules", children | {one: children[other], other: children[one]})


def tensors_exchanged(module: Any, one: str, other: str) -> Edit:
    """Edit that exchanges the values of two parameters of a module."""
    a, b = module._parameters[one], module._parameters[other]
    return together(held(a, b.clone()), held(b, a.clone()))


def twins(replay: Replay) -> Iterator[Proposal]:
    """Mutations of modules of one kind and size beside each other: one is called in place of another, or two are exchanged."""
    every = (each for each in replay.module.named_modules() if each[0] and shapes(each[1]) and not last(each[0]).isdigit())
    found = grouped(every, lambda each: (parent(each[0]), type(each[1]), shapes(each[1])))
    for those in (those for those in found.values() if 1 < len(those) <= MOST_TWINS):
        for (name, module), (other, its) in permutations(those, 2):
            yield propose(TWIN, (name, other), partial(replaced, module, "forward", its.forward))
        for (name, module), (other, its) in combinations(those, 2):
            yield propose(TWINS, (name, other), partial(calls_exchanged, module, its))


@contextmanager
def calls_exchanged(module: Any, other: Any) -> Iterator[None]:
    """Context manager that exchanges the `forward` of two modules. Inputs and outputs are recorded for the module whose
    `forward` runs."""
    with together(replaced(module, "forward", other.forward), replaced(other, "forward", module.forward)):
        yield


MOST_LAYERS = 64
SHARED = Change("layers.shared", "runs all of them with the weights of the {whose}", "runs {0} with weights of their own")
ORDER = Change(
    "layers.order",
    {
        "reversed": "runs them from the last to the first",
        "only_first": "runs the first every time",
        "only_last": "runs the last every time",
        "without_first": "leaves out the first",
        "without_last": "leaves out the last",
        "second_first": "begins with the second of them",
        "last_first": "begins with the last of them",
        "exchanged": "exchanges {one} and {other}",
    },
    "runs {0} in their order",
)


def lists_of_layers(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each list of layers or parameters: the weights of one layer in all, then other orders."""
    every = [each for each in replay.module.named_modules() if isinstance(each[1], ORDERED) and 1 < len(each[1]) <= MOST_LAYERS]
    for (kind, length), those in grouped(every, lambda each: (starred(each[0]), len(each[1]))).items():
        name, lists = (those[0][0] if len(those) == 1 else kind) or "its layers", [module for _, module in those]
        for whose, i in (("first", 0), ("last", -1)) if all(map(are_alike, lists)) else ():
            pairs = [zip(layer.parameters(), layers[i].parameters(), strict=True) for layers in lists for layer in layers]
            edits = [partial(held, x, y) for each in pairs for x, y in each]
            yield propose(SHARED, name, partial(all_of, edits), whose=whose, length=length)
        called = {i for i in range(length) for each, _ in those if is_called(replay, f"{each}.{i}")}
        for args, order in orders(length):
            if called - {*order} and len(order) < length:
                continue  # jax calls the layer that is left out
            edits = [partial(in_order, layers, order) for layers in lists]
            yield propose(ORDER, name, partial(all_of, edits), length=length, **args)


def in_order(layers: Any, order: Sequence[int]) -> Edit:
    """Edit in which a list has its entries in another order."""
    held = "_modules" if isinstance(layers, LISTS) else "_parameters"
    return replaced(layers, held, dict(zip(getattr(layers, held), (layers[n] for n in order), strict=False)))


def is_called(replay: Replay, name: str) -> bool:
    """True if jax calls a module, or one inside it."""
    path = full_path(replay, name)
    return any(site.path == path or below(site.path, path) for site in replay.boundaries)


def orders(n: int) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Other orders of `n` layers, as pairs of the arguments of their words and the order."""
    every = [*range(n)]
    yield {"how": "reversed"}, every[::-1]
    yield {"how": "only_first"}, [0] * n
    yield {"how": "only_last"}, [n - 1] * n
    yield {"how": "without_first"}, every[1:]
    yield {"how": "without_last"}, every[:-1]
    for how, i in (("second_first", 1), ("last_first", -1)) if n > 2 else ():
        yield {"how": how}, every[i:] + every[:i]
    for i in every[:-1]:
        yield {"how": "exchanged", "one": i, "other": i + 1}, [*every[:i], i + 1, i, *every[i + 2 :]]


def are_alike(layers: Any) -> bool:
    """True if all entries are layers with parameters of the same shapes."""
    return isinstance(layers, LISTS) and len({tuple(x.shape for x in layer.parameters()) for layer in layers}) == 1


LEFT_OUT = Change("children.left_out", "leaves it out", "applies {0}", cost=DELETES)
ROWS = Change("children.rows", worded("looks up rows"), "looks up {0} at its ids")
EXCHANGED = Change(
    "children.exchanged", "uses each in the place of the other", "uses what {0} and {1} give", subjects=2, reroutes=True
)
REPLACED = Change("children.replaced", "uses what {other} gives in its place", "uses what {0} gives")
BACKWARDS = Change("children.backwards", "goes from the last to the first", "goes from the first position to the last")
BEHIND = Change("children.behind", "applies {module} to it too", "gives this array as it is")


def children(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the children that jax does not call, then of those that it calls too: left out, rows of lookups, outputs
    exchanged or replaced; and of a module that is applied to the array too."""
    yield from left_out(replay)
    tensors, give = given_by(replay), replay.given_outputs
    names = {site: name_of(replay, site) for site in tensors}
    for site, x in tensors.items():
        inputs = replay.inputs.get(site)
        if inputs is not None and inputs.shape == x.shape:
            yield propose(LEFT_OUT, names[site], partial(give, {site: inputs}))
    for site, x in tensors.items():
        yield from other_rows(replay, site, x)
    for a, b in combinations(tensors, 2):
        if tensors[a].shape == tensors[b].shape:
            yield propose(EXCHANGED, (names[a], names[b]), partial(give, {a: tensors[b], b: tensors[a]}))
    for a, b in permutations(tensors, 2):
        if tensors[a].shape == tensors[b].shape:
            yield propose(REPLACED, names[a], partial(give, {a: tensors[b]}), other=names[b])
    yield from behind(replay)


def left_out(replay: Replay) -> Iterator[Proposal]:
    """Mutations that leave out a child that jax does not call."""
    called = {site.path for site in replay.given}
    for name, module in replay.module.named_children():
        if full_path(replay, name) not in called:
            yield propose(LEFT_OUT, name, partial(replaced, module, "forward", its_input))


def other_rows(replay: Replay, site: Site, given: torch.Tensor) -> Iterator[Proposal]:
    """Mutations of the rows that a child looks up in its table."""
    table, ids = getattr(replay.model.get_submodule(site.path), "weight", None), replay.inputs.get(site)
    if not isinstance(table, torch.Tensor) or table.ndim != 2 or ids is None or ids.is_floating_point() or not ids.numel():
        return
    if given.shape != (*ids.shape, table.shape[1]):
        return
    first = (table == given.reshape(-1, table.shape[1])[0]).all(-1).nonzero().flatten()
    rows = ids + (first[0] - ids.flatten()[0] if len(first) else 0)
    if rows.min() < 0 or rows.max() >= len(table) or not torch.equal(table[rows], given):
        return
    for way, other in other_ids(rows, len(table)):
        yield propose(ROWS, name_of(replay, site), partial(replay.given_outputs, {site: table[other]}), **way.args)


def backwards(replay: Replay) -> Iterator[Proposal]:
    """Mutation that reverses the positions of `B T ...`, as a loop that runs backwards does."""
    length = replay.wanted.shape[1] if replay.wanted.ndim > 2 else 0
    along = {site: x.flip(1) for site, x in given_by(replay).items() if x.ndim > 2 and x.shape[1] == length > 1}
    if along:
        edits = partial(replay.given_outputs, along), partial(replay.followed_by, lambda x: x.flip(1))
        yield propose(BACKWARDS, (), partial(all_of, edits))


def behind(replay: Replay) -> Iterator[Proposal]:
    """Mutations that apply one more module to the array: a child of the replayed module, a child of such a child, or one
    beside the module that makes the array."""
    beside, own = parent(replay.place.site.path), path_of(replay)
    for name, module in replay.model.named_modules():
        inner = own == parent(parent(name)) and any(True for _ in module.parameters()) and not any(module.children())
        if name and (parent(name) in (beside, own) or inner):
            yield propose(BEHIND, (), partial(replay.followed_by, module), module=name.removeprefix(f"{own}."))
