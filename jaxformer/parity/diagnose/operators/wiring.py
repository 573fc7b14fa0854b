"""Mutations of what the parts of a layer are given: their own arrays exchanged, another child's output, another layer's
mask."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple
from unittest import mock

import torch

from jaxformer.parity.diagnose.calls import Arguments, of_reals
from jaxformer.parity.diagnose.modules import intercepted, keeps_a_shape, path_of, recorded, starred
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, grouped, propose
from jaxformer.parity.diagnose.operators.masks import is_new_mask
from jaxformer.parity.diagnose.operators.parameters import alike, all_of
from jaxformer.parity.diagnose.operators.rotary_tables import pairs_in
from jaxformer.parity.diagnose.replay import Replay, running
from jaxformer.parity.diagnose.trace import same
from jaxformer.parity.trace.call_records import arrays_in, replaced
from jaxformer.parity.trace.call_sites import join

Given = dict[Any, Any]
"""Arguments by name, or by position."""
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""Number of a layer in its path."""
MOST_PARTS = 12
"""Largest number of children of a layer, and of modules that are given several arrays."""
ORDERS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((0, 0), {"how": "other", "array": "first", "place": "second"}),
    ((1, 1), {"how": "other", "array": "second", "place": "first"}),
    ((1, 0), {"how": "exchanged", "arrays": "first"}),
    ((0, 2, 2), {"how": "other", "array": "third", "place": "second"}),
    ((0, 1, 0), {"how": "other", "array": "first", "place": "third"}),
    ((0, 1, 1), {"how": "other", "array": "second", "place": "third"}),
    ((0, 2, 1), {"how": "exchanged", "arrays": "last"}),
)
"""Orders of a module's own arrays for its first arguments, with the arguments of the words."""
OWN_ARRAYS = {
    "other": "passes its {array} array for its {place} too",
    "exchanged": "exchanges its {arrays} two arguments",
}
ARGUMENTS = Change("wiring.arguments", OWN_ARRAYS, "passes {0} its own arguments")
INPUTS = Change("wiring.inputs", "exchanges the two", "takes {0} and {1} as named", subjects=2, reroutes=True)
READS = {
    "input": "passes it the layer's input",
    "output": "passes it the output of {other}",
    "sum": "passes it that plus the output of {other}",
    "normed_sum": "passes it {norm} of its input plus the output of {other}",
}
OF_ITS_OWN = Change("wiring.own_input", READS, "passes {0} its own input")
OF_A_CHILD = Change("wiring.child_output", READS, "passes {0} the output of {1}", subjects=2)
OTHER_LAYER = Change("wiring.other_layer", "uses those that {layer} is given", "uses {0} as given")


class Seen(NamedTuple):
    """First arrays that a layer and its children were given, and gave, so far in a run: by the child's name, '' for the
    layer."""

    given: dict[str, torch.Tensor]
    gave: dict[str, torch.Tensor]


def arguments(replay: Replay) -> Iterator[Proposal]:
    """Mutations of modules that are given several arrays, as queries, keys and values, or an input and a state: one array for
    another, or two exchanged, in every layer and in each."""
    inner = {name: module for name, module in replay.module.named_modules() if name}
    calls: dict[str, list[Arguments]] = {}
    replay.array(recorded(inner, calls))
    given = {name: its[0][0] for name, its in calls.items() if sum(map(of_reals, its[0][0])) > 1}
    layers = [those for those in grouped(given, starred).values() if len(those) > 1]
    for those in [*layers, *([name] for name in [*given][:MOST_PARTS])]:
        for order, args in ORDERS:
            if may_be_ordered(given[those[0]], order):
                name = starred(those[0]) if len(those) > 1 else those[0]
                edits = partial(intercepted, {each: inner[each] for each in those}, partial(in_order, order))
                yield propose(ARGUMENTS, name, edits, **args)


def may_be_ordered(given: tuple[Any, ...], order: tuple[int, ...]) -> bool:
    """True if arrays of as many axes and the same width change places, and one of them is another than before."""
    if len(order) > len(given):
        return False
    moved = [(given[at], given[i]) for at, i in enumerate(order) if at != i]
    alike = (of_reals(x) and of_reals(y) and (x.ndim, x.shape[-1:]) == (y.ndim, y.shape[-1:]) for x, y in moved)
    return all(alike) and not all(same(x, y) for x, y in moved)


def inputs(replay: Replay) -> Iterator[Proposal]:
    """Mutations that exchange two inputs of the call."""
    arrays = replay.input_arrays[:MOST_PARTS]
    for (i, one), (j, other) in combinations(enumerate(arrays), 2):
        if one.shape == other.shape and one.dtype == other.dtype and not same(one, other):
            names = tuple(f"input {at}{of_module(replay)}" for at in (i, j))
            yield propose(INPUTS, names, partial(replay.given_inputs, {i: other, j: one}))


def of_module(replay: Replay) -> str:
    """Words for the module that is replayed; none for the whole call."""
    return f" of {path}" if (path := path_of(replay)) else ""


def in_order(order: tuple[int, ...], name: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a module with its own arrays in another order for its first arguments."""
    return forward(*(args[i] for i in order), *args[len(order) :], **kwargs)


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations in which a child is given another array that its layer has by then, in all layers of a kind: kind by kind,
    child by child."""
    for group in alike(replay):
        name, layers = group[0][0], [layer for _, layer in group]
        if 1 < len([*layers[0].children()]) <= MOST_PARTS and not isinstance(layers[0], torch.nn.ModuleList):
            seen = Seen({}, {})
            replay.array(wired(layers[0], seen=seen))
            for child in filter(None, seen.given):
                path = join(name, child) if len(layers) == 1 else starred(join(name, child))
                makers = (each for each, y in seen.gave.items() if each != child and same(y, seen.given[child]))
                maker = next(makers, None)
                change, targets = (OF_ITS_OWN, path) if maker is None else (OF_A_CHILD, (path, maker))
                for args in others_read(layers[0], child, seen):
                    edits = [partial(wired, layer, child, args) for layer in layers]
                    yield propose(change, targets, partial(all_of, edits), **args)


def others_read(layer: Any, child: str, seen: Seen) -> Iterator[dict[str, Any]]:
    """Arguments of `read` for what a child may be given instead, the plain ones first."""
    x, whole = seen.given[child], seen.given.get("")
    before = [*seen.given][: [*seen.given].index(child)]
    made = [name for name in before if name and name in seen.gave and seen.gave[name].shape == x.shape]
    made = [name for name in made if not same(seen.given[name], seen.gave[name])]
    if whole is not None and whole.shape == x.shape and not same(whole, x):
        yield {"how": "input"}
    for name in made:
        if not same(seen.gave[name], x):
            yield {"how": "output", "other": name}
        yield {"how": "sum", "other": name}
    for norm, other in combinations(made, 2):
        if keeps_a_shape(layer.get_submodule(norm)):
            yield {"how": "normed_sum", "norm": norm, "other": other}


def read(layer: Any, seen: Seen, child: str, how: str, other: str = "", norm: str = "") -> torch.Tensor:
    """Compute the array that a child is given instead."""
    if how == "input":
        return seen.given[""]
    if how == "normed_sum":
        module = layer.get_submodule(norm)
        forward = type(module).forward  # if jax calls the norm too, its own `forward` returns the recorded output
        return forward(module, seen.given[norm] + seen.gave[other])
    return seen.gave[other] if how == "output" else seen.given[child] + seen.gave[other]


def wired(layer: Any, child: str = "", args: dict[str, Any] | None = None, seen: Seen | None = None) -> Edit:
    """Edit that notes what is seen of a layer, and gives a child what `read` returns for these arguments."""
    seen = seen or Seen({}, {})
    reads = {child: partial(read, layer, seen, child, **args)} if args else {}
    return intercepted({"": layer, **dict(layer.named_children())}, partial(noted, seen, reads))


def noted(seen: Seen, reads: dict[str, Any], name: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a module, and note the first arrays that it is given and gives."""
    every = arrays_in((args, kwargs))
    if (first := next(filter(of_reals, every), None)) is not None:
        seen.given[name] = first
        if name in reads:
            args, kwargs = replaced((args, kwargs), every, [reads[name]() if x is first else x for x in every])
    output = forward(*args, **kwargs)
    if (first := next(filter(of_reals, arrays_in(output)), None)) is not None:
        seen.gave[name] = first
    return output


def other_layers(replay: Replay) -> Iterator[Proposal]:
    """Mutations that use the arguments of another layer, each distinct set once, where more than one kind of them differs.

    The first array is kept: it is what the layer works on.
    """
    given, before = given_beside(replay), list[Given]()
    own, *others = ({**dict(enumerate(args)), **kwargs} for args, kwargs in (replay.arguments, *given.values()))
    first = next((name for name, value in own.items() if arrays_in(value)), None)
    for layer, other in zip(given, others, strict=True):
        changed = {name: other[name] for name in own if name != first and name in other and is_other(own[name], other[name])}
        if any(changed.keys() == each.keys() and not any(map(is_other, changed.values(), each.values())) for each in before):
            continue
        before.append(changed)
        if len(kinds := kinds_of(own, changed)) > 1:
            args, kwargs = replay.arguments
            every = own | changed
            taken = tuple(every[i] for i in range(len(args))), {key: every[key] for key in kwargs}
            yield propose(OTHER_LAYER, " and ".join(kinds), partial(mock.patch.object, replay, "arguments", taken), layer=layer)


def given_beside(replay: Replay) -> dict[str, Arguments]:
    """Arguments of the first call, in a run of the model, of each module whose path differs in the number of the layer
    alone."""
    own, calls = replay.owner.path, dict[str, list[Arguments]]()
    like = NUMBER.sub("*", own, 1)
    modules = {path: each for path, each in replay.model.named_modules() if path != own and NUMBER.sub("*", path, 1) == like}
    if modules and not replay.owner.call:
        with running(), recorded(modules, calls):
            replay.run_model()
    return {path: given[0] for path, given in calls.items()}


def is_other(one: Any, other: Any) -> bool:
    """True if two arguments are arrays, lists of arrays or None, and differ."""
    parts = [[] if each is None else each if isinstance(each, (tuple, list)) else [each] for each in (one, other)]
    if not all(isinstance(x, torch.Tensor) for each in parts for x in each):
        return False
    some, others = map(arrays_in, parts)
    return len(some) != len(others) or not all(map(torch.equal, some, others))


def kinds_of(own: Given, changed: Given) -> list[str]:
    """Kinds of the changed arguments: 'mask', 'rotary tables', or their names."""
    arrays = arrays_in([*own.values()])
    tables = {id(arrays[i]) for pair in pairs_in(arrays) for i in pair}

    def kind(name: Any) -> str:
        both = [*arrays_in(own[name]), *arrays_in(changed[name])]
        is_table, is_mask = any(id(x) in tables for x in both), any(is_new_mask(x, []) for x in both)
        return "rotary tables" if is_table else "mask" if is_mask else str(name)

    return [*dict.fromkeys(map(kind, changed))]
