"""What may be otherwise in torch's modules: their settings, and what they read as their parameters."""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import permutations
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.other_functions import ACTIVATIONS


def is_even(x: torch.Tensor) -> bool:
    """Whether it is a matrix whose last axis has halves."""
    return x.squeeze().ndim == 2 and x.shape[-1] > 2 and x.shape[-1] % 2 == 0


READINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "left out": torch.zeros_like,
    "taken for 1": torch.ones_like,
    "taken twice": lambda x: 2 * x,
    "plus 1": lambda x: x + 1,
    "minus 1": lambda x: x - 1,
    "negated": torch.neg,
    "subtracted from 1": lambda x: 1 - x,
    "exponentiated": torch.exp,
    "without its exponential": lambda x: torch.log(x),
    "squared": torch.square,
    "as its root": lambda x: torch.sqrt(x),
    "transposed": lambda x: x.transpose(-1, -2) if x.ndim > 1 and x.shape[-1] == x.shape[-2] else x,
    "flipped along its last axis": lambda x: x.flip(-1) if x.ndim > 2 else x,
    "flipped along its last two axes": lambda x: x.flip((-1, -2)) if x.ndim > 3 else x,
    "with its last two axes swapped": lambda x: x.transpose(-1, -2) if x.ndim > 2 and x.shape[-1] == x.shape[-2] else x,
    "with its halves exchanged": lambda x: x.roll(x.shape[-1] // 2, -1) if is_even(x) else x,
    "with neighbours exchanged": lambda x: x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if is_even(x) else x,
    "with neighbours for halves": lambda x: x.unflatten(-1, (2, -1)).mT.flatten(-2) if is_even(x) else x,
    "with halves for neighbours": lambda x: x.unflatten(-1, (-1, 2)).mT.flatten(-2) if is_even(x) else x,
    "one row later": lambda x: x.roll(-1, 0) if x.ndim == 2 else x,
    "rounded to bfloat16": lambda x: x.bfloat16().double(),
    "rounded to float16": lambda x: x.half().double(),
}
"""How a tensor may be read."""
USUAL_SIZES = tuple(2**n for n in range(1, 11))
"""Of windows, buckets and the like, which a port may hold as constants."""
MOST_READINGS = 24
"""Of tensors in one module; a larger one is told by its operations."""
NAMES = ("gelu", "silu", "swish", "relu", "mish", "sigmoid", "tanh", "activation")
"""Of activations that somebody wrote."""
MOST_ALIKE = 3
"""Matrices of one shape."""
IGNORED = {"training", "inplace", "call_super_init", "dump_patches", "T_destination"}


def settings(module: Any, name: str, read: Container[tuple[int, str]], first: dict[int, str]) -> Iterator[Alteration | Dial]:
    """Its plain attributes that are read, and those of its configuration, if it is the first that has this one; `first` has the
    names of these, by the ids of configurations."""
    for owner in (module, getattr(module, "config", None)):
        if owner is None or first.setdefault(id(owner), name) != name:
            continue
        for attribute, value in list(vars(owner).items()):
            if not attribute.startswith("_") and attribute not in IGNORED and (id(owner), attribute) in read:
                yield from of_attribute(owner, attribute, value, name)
    for attribute, child in module._modules.items():
        if child is not None and is_activation(child):
            for other, function in ACTIVATIONS.items():
                says = f"{attribute} {type(child).__name__}", f"{attribute} {other}"
                if is_same(child, function):
                    continue
                yield Alteration(*says, lambda child=child, function=function: replaced(child, "forward", function))


def is_same(one: Any, other: Any) -> bool:
    """Whether two activations give the same."""
    x = torch.linspace(-4, 4, 17, dtype=torch.float64)
    return torch.allclose(one(x), other(x), rtol=0, atol=1e-12)


def is_activation(module: Any) -> bool:
    """Whether a module is a function of one tensor, without anything inside: one of a library, or by its name."""
    kind, inner = type(module), [*module.parameters(), *module.buffers(), *module.children()]
    known = kind.__module__.endswith(("nn.modules.activation", "transformers.activations")) and "Attention" not in kind.__name__
    return not inner and (known or any(name in kind.__name__.lower() for name in NAMES))


def of_attribute(owner: Any, attribute: str, value: Any, name: str) -> Iterator[Alteration | Dial]:
    """A number, a switch or a function of it."""
    path = f"{name}.{attribute}" if name else attribute

    def inside(other: Any) -> Any:
        return replaced(owner, attribute, other)

    if isinstance(value, float):
        yield Dial(f"{path} {value:.9g}", f"{path} {{}}", value, inside, sure=True, absent=True)
    elif isinstance(value, bool):
        yield Alteration(f"{path} {value}", f"{path} {not value}", lambda: inside(not value))
    elif isinstance(value, int):
        usual = USUAL_SIZES if value > 1 and isinstance(owner, torch.nn.Module) else ()
        for other in dict.fromkeys(each for each in (value - 1, value + 1, 1, 2 * value, *usual) if each != value):
            near = tuple(partial(inside, each) for each in (other - 1, other + 1) if each != value)
            yield Alteration(f"{path} {value}", f"{path} {other}", partial(inside, other), near)
    elif isinstance(value, tuple) and value and all(type(each) is int for each in value):
        for more in (-1, 1):
            other = tuple(each + more for each in value)
            yield Alteration(f"{path} {value}", f"{path} {other}", lambda other=other: inside(other))
    elif value is None:
        yield Dial(f"{path} None", f"{path} {{}}", 1.0, inside)
    elif callable(value) and not isinstance(value, type) and getattr(value, "__name__", "") in ACTIVATIONS:
        for other, function in ACTIVATIONS.items():
            yield Alteration(f"{path} {value.__name__}", f"{path} {other}", lambda function=function: inside(function))


def readings(module: Any, name: str, ways: Iterable[str]) -> Iterator[Alteration]:
    """Its own tensors, read in other ways."""
    own = {**module._parameters, **module._buffers}
    own = {key: tensor for key, tensor in own.items() if tensor is not None and tensor.is_floating_point()}
    for key, tensor in list(own.items())[:MOST_READINGS]:
        path = f"{name}.{key}" if name else key
        for says in ways:
            other = READINGS[says](tensor)
            if other is tensor or (says in ("left out", "taken for 1") and tensor.squeeze().ndim > 2):
                continue
            yield Alteration(f"{path} as it is", f"{path} {says}", lambda tensor=tensor, other=other: held(tensor, other))


def taken_for(module: Any) -> Iterator[Alteration]:
    """One of few matrices of one shape, read in the place of another one, as of tied weights."""
    shapes: dict[Any, list[tuple[str, torch.Tensor]]] = {}
    for path, tensor in module.named_parameters():
        if tensor.ndim > 1:
            shapes.setdefault(tuple(tensor.shape), []).append((path, tensor))
    for those in shapes.values():
        for (path, tensor), (other, its) in permutations(those, 2) if len(those) <= MOST_ALIKE else ():
            yield Alteration(f"{path} as it is", f"{other} in its place", lambda tensor=tensor, its=its: held(tensor, its))


@contextmanager
def replaced(owner: Any, attribute: str, other: Any) -> Iterator[None]:
    """Inside, an attribute is another."""
    missing = object()
    before = vars(owner).get(attribute, missing)
    object.__setattr__(owner, attribute, other)
    try:
        yield
    finally:
        if before is missing:
            object.__delattr__(owner, attribute)
        else:
            object.__setattr__(owner, attribute, before)


@contextmanager
def held(tensor: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
    """Inside, a tensor has the numbers of another one."""
    before = tensor.clone()
    tensor.copy_(other.clone())  # it may be another view of the same numbers
    try:
        yield
    finally:
        tensor.copy_(before)
