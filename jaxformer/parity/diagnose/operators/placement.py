"""Mutations of where norms, activations and biases are applied: before or after another module, a sum, a branch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose import modules
from jaxformer.parity.diagnose.calls import Arguments, named
from jaxformer.parity.diagnose.computes import Compute, behind, operand, with_operand
from jaxformer.parity.diagnose.functions import is_activation
from jaxformer.parity.diagnose.modules import replaced
from jaxformer.parity.diagnose.mutation import REPEATS, Change, Edit, Proposal, propose, together
from jaxformer.parity.diagnose.operators.exchange import LEFT_OUT
from jaxformer.parity.diagnose.operators.parameters import alike, all_of
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Rewrite, same
from jaxformer.parity.trace import call_records
from jaxformer.parity.trace.call_sites import Site, join

PRODUCTS = ("linear", "conv1d", "conv2d", "conv3d")
ALL_NORMS = Change(
    "placement.all_norms",
    {"after": "has each after its sum (post-norm)", "before": "has each before its branch (pre-norm)"},
    "has {0} where they are",
)
NORM = Change(
    "placement.norm",
    {
        "after": "has it after {1}",
        "before": "has it before {1}",
        "first": "has it on the first operand of {1}",
        "second": "has it on the second operand of {1}",
    },
    "has {0} where it is",
)
NORM_ADDED = Change("placement.norm_added", "applies {norm} after it too", "uses {0} as it is", cost=REPEATS)
ACTIVATION = Change("placement.activation", {"after": "does that after {1} instead", "before": "does that before {1} instead"})
ACTIVATION_ADDED = Change("placement.activation_added", "applies {activation} to it", "uses {0} as it is", cost=REPEATS)
BIAS = Change("placement.bias", "adds the bias after {1} instead")


def all_norms(replay: Replay) -> Iterator[Proposal]:
    """Mutations that apply every norm after the sum that follows it (post-norm), or before the branch that the sum adds
    (pre-norm).

    A branch begins with the module that is called right after a norm, or first of all.
    """
    norms, called = modules.norms(replay), [site.path for site in replay.later]
    paths = {modules.full_path(replay, name) for name in norms}
    starts = [path for last, path in pairwise(["", *called]) if path not in paths and (not last or last in paths)]
    for how, others in (("after", sums_in(replay)), ("before", [*map(replay.model.get_submodule, starts)])):
        if len(norms) == len(others) > 1:
            edits = [partial(moved, how, module, other) for module, other in zip(norms.values(), others, strict=True)]
            yield propose(ALL_NORMS, " and ".join(norms), partial(all_of, edits), how=how)
    yield from in_layers(replay)


def in_layers(replay: Replay) -> Iterator[Proposal]:
    """Mutations that apply every norm after its sum, or before its branch, in all layers of a kind: of code that runs them."""
    for group in (each for each in alike(replay) if len(each) > 1):
        layers = [dict(layer.named_children()) for _, layer in group]
        names = [name for name, child in layers[0].items() if modules.keeps_a_shape(child)]
        targets = " and ".join(join(modules.starred(group[0][0]), name) for name in names)
        own = [id(layer) for _, layer in group]
        sums = [op for op in replay.listed if is_sum(op) and [run.module for run in op.runs] == own]
        if 1 < len(names) == len(sums):
            edits = partial(after_sums, [[layer[name] for layer in layers] for name in names], sums)
            yield propose(ALL_NORMS, targets, edits, how="after")
        calls: dict[str, list[Arguments]] = {}
        replay.array(modules.recorded(layers[0], calls))
        starts = [name for last, name in pairwise(["", *calls]) if name not in names and (not last or last in names)]
        if 1 < len(names) == len(starts):
            pairs = [(layer[norm], layer[start]) for layer in layers for norm, start in zip(names, starts, strict=True)]
            yield propose(
                ALL_NORMS, targets, partial(all_of, [partial(moved, "before", *pair) for pair in pairs]), how="before"
            )


def after_sums(norms: list[list[Any]], sums: list[Op]) -> Edit:
    """Edit in which each of several norms, one of every layer, follows the sum of its layer."""
    rewrites = {}
    for op, those in zip(sums, norms, strict=True):
        forwards = [norm.forward for norm in those]
        rewrites[op.place] = lambda f, a, k, n, forwards=forwards: forwards[n](f(*a, **k))
    left_out = (replaced(norm, "forward", modules.its_input) for those in norms for norm in those)
    return together(*left_out, Rewrite(rewrites))


def one_norm(replay: Replay) -> Iterator[Proposal]:
    """Mutations of one norm: left out, applied after another module too, or moved: after a sum, onto an operand of a sum,
    before or after a module."""
    sums, norms = sums_in(replay), dict([*modules.norms(replay).items()][: modules.MOST_MODULES])
    beside = {name: [*neighbours(replay, modules.full_path(replay, name))] for name in norms}
    for name, norm in norms.items():  # also covers a norm that jax applies after the array
        yield propose(LEFT_OUT, name, partial(replaced, norm, "forward", modules.its_input))
    for name in sorted(norms, key=lambda each: each.count(".")):  # the outermost first
        for label, other in beside[name]:
            yield propose(NORM_ADDED, label, partial(added, "after", norms[name], other), norm=name)
    for name, norm in norms.items():
        for total, how in product(sums, ("after", "first", "second")):
            yield propose(NORM, (name, total.target), partial(moved, how, norm, total), how=how)
        for (label, other), how in product(beside[name], ("before", "after")):
            yield propose(NORM, (name, label), partial(moved, how, norm, other), how=how)


def sums_in(replay: Replay) -> list[Op]:
    """Sums of two arrays of one shape, computed once."""
    return [op for op in replay.every_operation if len(op.runs) == 1 and is_sum(op)]


def is_sum(op: Op) -> bool:
    """True for a sum of two arrays of one shape."""
    return op.name == "add" and [getattr(x, "shape", None) for x in op.args[:2]] == [op.output.shape] * 2


def neighbours(replay: Replay, path: str) -> Iterator[tuple[str, Any]]:
    """Modules beside the one at `path`, then beside those around it, with their names."""
    own = modules.path_of(replay)
    while path not in ("", own):
        around, _, last = path.rpartition(".")
        for name, module in replay.model.get_submodule(around).named_children():
            if name != last:
                yield join(around, name).removeprefix(own).removeprefix("."), module
        path = around


@contextmanager
def moved(how: str, module: Any, other: Any) -> Iterator[None]:
    """Context manager that moves a module: before or after another one, after a sum, or onto an operand of a sum."""
    with added(how, module, other), replaced(module, "forward", modules.its_input):
        yield


@contextmanager
def added(how: str, module: Any, other: Any) -> Iterator[None]:
    """Context manager that applies a module in another place too."""
    forward, following = module.forward, getattr(other, "forward", None)
    ways: dict[str, Compute] = {
        "after": behind(forward),
        "before": partial(on_first_array, forward),
        "first": with_operand(0, forward),
        "second": with_operand(1, forward),
    }
    compute = ways[how]
    is_op = isinstance(other, Op)
    with other.rewrite(compute) if is_op else replaced(other, "forward", lambda *a, **k: compute(following, a, k, 0)):
        yield


def on_first_array(change: Callable[[Any], Any], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a function with `change` applied to the first array that it is given."""
    first, *others = call_records.arrays_in((args, kwargs))
    args, kwargs = call_records.replaced((args, kwargs), [first, *others], [change(first), *others])
    return function(*args, **kwargs)


def activations(replay: Replay) -> Iterator[Proposal]:
    """Mutations of activations: applied later or earlier, then to the output of another child too."""
    tensors, active = modules.given_by(replay), [*filter(is_activation, replay.every_operation)]
    yield from done_later(replay, tensors)
    yield from done_earlier(replay, tensors, active)
    kinds = {(each.name, repr(each.args[1:]), repr(each.kwargs)): each for each in active}
    for (site, x), ((name, *options), op) in product(tensors.items(), kinds.items()):
        if has_its_axis(op, x):
            edits = partial(replay.given_outputs, {site: applied(op, 0, x)})
            yield propose(ACTIVATION_ADDED, modules.name_of(replay, site), edits, activation=name, options=options)


def done_later(replay: Replay, tensors: dict[Site, torch.Tensor]) -> Iterator[Proposal]:
    """Mutations that apply an activation, or a product with a gate, after the child that reads its output."""
    for site, tensor in tensors.items():
        for op in (each for each in replay.every_operation if same(each.output, replay.inputs.get(site))):
            for i, x in enumerate(op.args[:2]):
                gate = op.name == "mul" and isinstance(x, torch.Tensor) and x.shape == tensor.shape
                if gate or (i == 0 and is_activation(op) and has_its_axis(op, tensor)):
                    others = {site: applied(op, i, tensor)}
                    if matters(replay, others):
                        edits = partial(passed_on, replay, op, i, others)
                        yield propose(ACTIVATION, (op.target, modules.name_of(replay, site)), edits, how="after", operand=i)


def done_earlier(replay: Replay, tensors: dict[Site, torch.Tensor], active: list[Op]) -> Iterator[Proposal]:
    """Mutations that apply an activation to the input of the child whose output it reads: to the output of the child before."""
    for op, site, other in product(active, tensors, tensors):
        x, reads_site = tensors[other], same(next(iter(op.args), None), tensors[site])
        if other != site and reads_site and same(x, replay.inputs.get(site)) and has_its_axis(op, x):
            edits = partial(passed_on, replay, op, 0, {other: applied(op, 0, x)})
            label, behind = modules.name_of(replay, site), modules.name_of(replay, other)
            yield propose(ACTIVATION, (op.target, label), edits, how="before", behind=behind)


def has_its_axis(op: Op, x: torch.Tensor) -> bool:
    """True if an array has the axis of a softmax; always True for other activations, which have no axis."""
    axis = next(iter(op.args[1:]), op.kwargs.get("dim"))
    return "softmax" not in op.name or not isinstance(axis, int) or -x.ndim <= axis < x.ndim


def applied(op: Op, i: int, x: torch.Tensor) -> Any:
    """Compute an operation with a copy of `x` for operand `i`."""
    return with_operand(i, lambda _: x.clone())(op.function, op.args, op.kwargs, 0)


def matters(replay: Replay, others: dict[Site, Any]) -> bool:
    """True if these outputs of children change the array. Several children may be given the same, and not all of them
    matter."""
    found = replay.array(replay.given_outputs(others))
    return found is None or not np.array_equal(found, replay.wanted)


def passed_on(replay: Replay, op: Op, i: int, others: dict[Site, Any]) -> Edit:
    """Edit in which an operation gives its operand `i`, and children give these arrays."""
    return together(op.rewrite(operand(i)), replay.given_outputs(others))


def biases(ops: list[Op]) -> Iterator[Proposal]:
    """Mutations that add the bias of a product after the activation that reads it."""
    products = [each for each in ops if each.name in PRODUCTS]
    biased = [each for each in products if named(each.function, each.args, each.kwargs).get("bias") is not None]
    for linear, op in product(biased, filter(is_activation, ops)):
        if same(next(iter(op.args), None), linear.output):
            yield propose(BIAS, (linear.target, op.target), partial(added_behind, linear, op))


def added_behind(product: Op, op: Op) -> Rewrite:
    """Rewrite in which the bias of each product is added after the activation."""
    biases: list[torch.Tensor] = []

    def bare(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        given = named(function, args, kwargs)
        if (bias := given.get("bias")) is not None:
            biases.append(bias.reshape(-1, *[1] * (given["weight"].ndim - 2)))
        return function(**given | {"bias": None})

    return Rewrite({product.place: bare, op.place: lambda f, a, k, n: f(*a, **k) + biases.pop(0)})
