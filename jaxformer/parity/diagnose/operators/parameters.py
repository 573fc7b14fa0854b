"""Mutations of settings and tensors of modules: in all layers that are alike at once, then in one of them."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose.functions import ACTIVATIONS, is_same, kind_of, spelled
from jaxformer.parity.diagnose.modules import held, replaced, starred
from jaxformer.parity.diagnose.mutation import (
    DELETES,
    Change,
    Edit,
    Edits,
    Free,
    Proposal,
    grouped,
    propose,
    together,
    words_of,
)
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.trace.call_sites import below, join, last

LEFT_OUT = Change("parameters.left_out", "leaves it out", "uses {0}", cost=DELETES)
ALL_LEFT_OUT = Change("parameters.all_left_out", "leaves them out", "uses {targets:and}", cost=DELETES)
TIED = Change("parameters.tied", "uses {1} in its place", "uses {0}", reroutes=True)
NUMBER = Change("parameters.number", "{0} {value}", "{0} {was:.9g}")
NUMBERS = Change("parameters.numbers", "{value}", "{was:.9g} for {targets:and}")
NO_NUMBER = Change("parameters.no_number", "{0} {value}", "{0} None")
SETTING = Change("parameters.setting", "{0} {other}", "{0} {was}")
CHOICE = Change("parameters.choice", "{0} {other!s}", "{0} {was!s}")
CONSTANT = Change("parameters.constant", "has {other:.6g} there, in {1}", "has {was:.6g} at [{at}] of {0}")


def is_square(x: torch.Tensor) -> bool:
    """True if the last two axes have the same size."""
    return x.ndim > 1 and x.shape[-1] == x.shape[-2]


def is_even(x: torch.Tensor) -> bool:
    """True for a matrix whose last axis splits into halves of several entries."""
    return x.squeeze().ndim == 2 and x.shape[-1] > 2 and x.shape[-1] % 2 == 0


READINGS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "ones": ("leaves it out (takes 1 for it)", lambda x: torch.ones_like(x) if x.squeeze().ndim <= 2 else x),
    "double": ("doubles it", lambda x: 2 * x),
    "plus_one": ("adds 1 to it", lambda x: x + 1),
    "minus_one": ("subtracts 1 from it", lambda x: x - 1),
    "negative": ("negates it", torch.neg),
    "complement": ("uses 1 minus it", lambda x: 1 - x),
    "exp": ("uses exp of it", torch.exp),
    "log": ("uses log of it", torch.log),
    "square": ("squares it", torch.square),
    "root": ("uses its square root", torch.sqrt),
    "transpose": ("transposes it", lambda x: x.mT if is_square(x) else x),
    "flip": ("flips it along its last axis", lambda x: x.flip(-1) if x.ndim > 2 else x),
    "flip_two": ("flips it along its last two axes", lambda x: x.flip((-1, -2)) if x.ndim > 3 else x),
    "swap_axes": ("transposes its last two axes", lambda x: x.mT if is_square(x) and x.ndim > 2 else x),
    "swap_halves": ("exchanges its halves", lambda x: x.roll(x.shape[-1] // 2, -1) if is_even(x) else x),
    "swap_neighbours": (
        "exchanges neighbours (2i and 2i + 1) in it",
        lambda x: x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if is_even(x) else x,
    ),
    "interleave": (
        "reads it as neighbours (2i, 2i + 1) for halves",
        lambda x: x.unflatten(-1, (2, -1)).mT.flatten(-2) if is_even(x) else x,
    ),
    "deinterleave": (
        "reads it as halves for neighbours (2i, 2i + 1)",
        lambda x: x.unflatten(-1, (-1, 2)).mT.flatten(-2) if is_even(x) else x,
    ),
    "next_row": ("reads its rows one later", lambda x: x.roll(-1, 0) if x.ndim == 2 else x),
    "bfloat16": ("rounds it to bfloat16", lambda x: x.bfloat16().double()),
    "float16": ("rounds it to float16", lambda x: x.half().double()),
}
"""Functions of a tensor that may be read for it, with words; the tensor itself where one does not apply."""
READ = Change("parameters.read", words_of(READINGS), "uses {0} as it is")
USUAL_SIZES = tuple(2**n for n in range(1, 11))
"""Usual sizes of windows, buckets and the like, which a port may hold as constants."""
MOST_READINGS = 24
"""Largest number of tensors of one module that are mutated; for the others, mutations of operations have to do."""
NAMES = ("gelu", "silu", "swish", "relu", "mish", "sigmoid", "tanh", "activation")
"""Parts of the class names of activations in users' code."""
MOST_ALIKE = 3
"""Largest number of matrices of one shape that are used for one another."""
MOST_MODULES = 40
MOST_GROUPS = 6
"""Largest number of places with the same number of which some are mutated together."""
IGNORED = {"training", "inplace", "call_super_init", "dump_patches", "T_destination"}
Kind = Callable[[Any, str], Iterator[Proposal]]
"""kind(module, name) -> mutations of a module."""
Group = list[tuple[str, Any]]
"""Modules at the same place of layers that are alike, with their names."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the module and of those inside it that jax does not call: tensors left out or tied, then other settings."""
    yield from in_every_layer(replay, left_out)
    yield from tied(replay.module)
    yield from in_every_layer(replay, twins)
    yield from in_every_layer(replay, partial(settings, replay, {}))


def readings(replay: Replay) -> Iterator[Proposal]:
    """Mutations of how the same modules read their tensors."""
    yield from in_every_layer(replay, read_otherwise)


def in_one_layer(replay: Replay) -> Iterator[Proposal]:
    """Mutations of a single one of several layers that are alike."""
    groups = [group for group in alike(replay) if len(group) > 1]
    for kind in (left_out, partial(settings, replay, {}), read_otherwise):
        for name, module in (each for group in groups for each in group):
            yield from kind(module, name)


def in_every_layer(replay: Replay, kind: Kind) -> Iterator[Proposal]:
    """Mutations of all modules, each in every layer at once."""
    for group in alike(replay):
        yield from together_or_alone(group, kind)


def in_groups(replay: Replay) -> Iterator[Proposal]:
    """Mutations of a number that several settings share, as the epsilon of all norms, in all of them or in some; of vectors of
    one name."""
    every = in_every_layer(replay, partial(settings, replay, {}))
    numbers = (each for each in every if each.mutation.change == NUMBER)
    for several in grouped(numbers, lambda each: (last(each.mutation.targets[0].label), each.mutation.args)).values():
        for size in range(len(several), 1, -1) if len(several) <= MOST_GROUPS else ():
            for some in combinations(several, size):
                targets = tuple(target for each in some for target in each.mutation.targets)
                free, edits = some[0].free, partial(all_of, [each.edits for each in some])
                yield propose(NUMBERS, targets, edits, free, **dict(some[0].mutation.args))
    yield from left_out_everywhere(replay)


def alike(replay: Replay) -> list[Group]:
    """Groups of modules whose paths differ in numbers of layers alone, without those that jax calls too."""
    own = replay.module
    inner = {site.path.removeprefix(f"{replay.owner.path}.") for site in replay.boundaries if site in replay.given}
    open_ = [each for each in own.named_modules() if not any(each[0] == path or below(each[0], path) for path in inner)]
    groups = [*grouped(open_, lambda each: (starred(each[0]), type(each[1]))).values()]
    return groups if len(groups) <= MOST_MODULES else [each for each in groups if each[0][0].count(".") < 3]


def together_or_alone(group: Group, kind: Kind) -> Iterator[Proposal]:
    """Mutations of all modules of a group at once, where every module has the mutation."""
    (name, module), *others = group
    if not others:
        yield from kind(module, name)
        return
    found = [{each.mutation: each for each in kind(module, starred(name))} for _, module in group]
    for mutation, first in found[0].items():
        each = [other[mutation] for other in found if mutation in other]
        if len(each) == len(group):
            near = tuple(partial(all_of, several) for several in zip(*(one.near for one in each), strict=True))
            yield replace(first, edits=partial(all_of, [one.edits for one in each]), near=near)


def all_of(several: Iterable[Edits], *number: Any) -> Edit:
    """Edit that applies all edits, each with the number of the free parameter if there is one."""
    return together(*(each(*number) for each in several))


def tensors_of(module: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Float parameters and buffers of the module itself, with their paths."""
    own = {**module._parameters, **module._buffers}
    real = [(key, x) for key, x in own.items() if x is not None and x.is_floating_point()]
    yield from ((f"{name}.{key}".removeprefix("."), tensor) for key, tensor in real[:MOST_READINGS])


def left_out(module: Any, name: str) -> Iterator[Proposal]:
    """Mutations that set one of the module's tensors to zeros."""
    for path, tensor in tensors_of(module, name):
        if tensor.squeeze().ndim <= 2:
            yield propose(LEFT_OUT, path, partial(held, tensor, torch.zeros_like(tensor)))


def left_out_everywhere(replay: Replay) -> Iterator[Proposal]:
    """Mutations that set the vectors of one name to zeros: in all modules of a kind, as the biases of norms, and in all."""
    modules = [(module, starred(name)) for group in alike(replay) for name, module in group]
    every = [(type(module), path, x) for module, name in modules for path, x in tensors_of(module, name) if x.ndim == 1]
    kinds = grouped(every, lambda each: (each[0], last(each[1]))) | grouped(every, lambda each: last(each[1]))
    for those in kinds.values():
        if len(paths := tuple(dict.fromkeys(path for _, path, _ in those))) > 1:
            edits = [partial(held, x, torch.zeros_like(x)) for *_, x in those]
            yield propose(ALL_LEFT_OUT, paths, partial(all_of, edits))


def read_otherwise(module: Any, name: str) -> Iterator[Proposal]:
    """Mutations that use a function of a tensor, one of `READINGS`, in its place."""
    for path, tensor in tensors_of(module, name):
        for how, (_, reading) in READINGS.items():
            if reading(tensor) is not tensor:
                yield propose(READ, path, partial(held, tensor, reading), how=how)


def tied(module: Any) -> Iterator[Proposal]:
    """Mutations that use a matrix in place of another one of its shape, as tied weights do."""
    matrices = (each for each in module.named_parameters() if each[1].ndim > 1)
    for same in grouped(matrices, lambda each: tuple(each[1].shape)).values():
        for (path, tensor), (other, its) in permutations(same, 2) if len(same) <= MOST_ALIKE else ():
            yield propose(TIED, (path, other), partial(held, tensor, its))


def twins(module: Any, name: str) -> Iterator[Proposal]:
    """Mutations that use a vector in place of another one whose name has another number, as `gamma1` and `gamma2`."""
    vectors = ((path, x) for path, x in module.named_parameters() if x.ndim == 1 and path.count(".") <= 1)
    for same in grouped(vectors, lambda each: (len(each[1]), re.sub(r"\d+", "", each[0]))).values():
        for (path, tensor), (other, its) in permutations(same, 2) if len(same) <= MOST_ALIKE else ():
            yield propose(TIED, (join(name, path), join(name, other)), partial(held, tensor, its))


def settings(replay: Replay, first: dict[int, str], module: Any, name: str) -> Iterator[Proposal]:
    """Mutations of plain attributes that are read, and of activations among the module's children.

    The attributes are the module's and its configuration's. `first` maps the id of a configuration to the first module that
    has it, so that its attributes are mutated once.
    """
    for owner in (module, getattr(module, "config", None)):
        if owner is None or first.setdefault(id(owner), name) != name:
            continue
        for attribute, value in list(getattr(owner, "__dict__", {}).items()):
            if not attribute.startswith("_") and attribute not in IGNORED and (id(owner), attribute) in replay.read:
                path, is_size = f"{name}.{attribute}".removeprefix("."), isinstance(owner, torch.nn.Module)
                yield from setting(path, value, partial(replaced, owner, attribute), is_size)
    for attribute, child in module._modules.items():
        for other, function in ACTIVATIONS.items() if child is not None and is_activation(child) else ():
            if not is_same(child, function):
                edit, path = partial(replaced, child, "forward", function), join(name, attribute)
                label = path if attribute.isdigit() else attribute
                yield propose(CHOICE, label, edit, was=kind_of(child, spelled(other)), other=spelled(other))


def is_activation(module: Any) -> bool:
    """True for an activation of a library or by its name: a module without parameters, buffers or children."""
    kind, inner = type(module), [*module.parameters(), *module.buffers(), *module.children()]
    known = kind.__module__.endswith(("nn.modules.activation", "transformers.activations")) and "Attention" not in kind.__name__
    return not inner and (known or any(name in kind.__name__.lower() for name in NAMES))


def setting(path: str, value: Any, edits: Edits, is_size: bool) -> Iterator[Proposal]:
    """Mutations of an attribute: another number, switch, size or activation."""
    if isinstance(value, float):
        yield propose(NUMBER, path, edits, Free(value, sure=True, absent=True), was=value)
    elif value is None:
        yield propose(NO_NUMBER, path, edits, Free(1.0))
    elif isinstance(value, int) and not isinstance(value, bool):
        usual = USUAL_SIZES if value > 1 and is_size else ()
        for other in dict.fromkeys(each for each in (value - 1, value + 1, 1, 2 * value, *usual) if each != value):
            near = tuple(partial(edits, each) for each in (other - 1, other + 1) if each != value)
            yield propose(SETTING, path, partial(edits, other), near=near, was=value, other=other)
    else:
        own, others = choices(value)
        for name, other in others.items():
            yield propose(CHOICE, path, partial(edits, other), was=own, other=name)


def choices(value: Any) -> tuple[Any, dict[Any, Any]]:
    """Name of an attribute's value (switch, sizes or activation), and other values by their names."""
    if isinstance(value, bool):
        return value, {not value: not value}
    if isinstance(value, tuple) and value and all(type(each) is int for each in value):
        return value, {other: other for other in (tuple(each + more for each in value) for more in (-1, 1))}
    name = getattr(value, "__name__", "") if callable(value) and not isinstance(value, type) else ""
    return name, {spelled(other): function for other, function in ACTIVATIONS.items()} if name in ACTIVATIONS else {}


def constants(replay: Replay) -> Iterator[Proposal]:
    """Mutations that use an array of the JAX model that is no weight in place of a buffer of the same size and kind."""
    for name, buffer in replay.module.named_buffers():
        numbers = buffer.numpy()
        for path, array in replay.constants.items() if numbers.size else ():
            if array.size != numbers.size or (array.dtype.kind == "f") != (numbers.dtype.kind == "f"):
                continue
            other = array.reshape(numbers.shape)
            if other.dtype.kind != "f":  # JAX reads the last row at an index beyond a table; torch raises
                other = other.clip(max=numbers.max())
            if (differing := np.argwhere(other != numbers)).size:
                at = tuple(differing[0].tolist())
                edit = partial(held, buffer, torch.tensor(other))
                yield propose(CONSTANT, (name, path), edit, was=numbers[at].item(), other=other[at].item(), at=at)
