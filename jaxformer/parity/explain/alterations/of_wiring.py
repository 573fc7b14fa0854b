"""What may be otherwise in what the parts of a layer are given: a branch beside another one that comes behind it in torch, or
the other way round. In layers that are alike, in all of them."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import combinations
from typing import Any
from unittest import mock

import torch

from jaxformer.parity.capture.call_records import arrays_in, replaced
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_layers import alike
from jaxformer.parity.explain.alterations.of_operands import same
from jaxformer.parity.explain.alterations.of_places import keeps_a_shape
from jaxformer.parity.explain.alterations.operations import of_reals
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_PARTS = 12
"""Children of a layer."""


@dataclass
class Seen:
    """The first arrays that a layer and its children were given in a run, and gave, so far; the layer's by ''."""

    given: dict[str, torch.Tensor] = field(default_factory=dict)
    gave: dict[str, torch.Tensor] = field(default_factory=dict)


Reads = Callable[[Any, Seen], torch.Tensor]
"""reads(the layer, what was seen of it) -> what a child is given instead."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Layer by layer of each kind, child by child."""
    for group in alike(rerun):
        name, layers = group[0][0], [layer for _, layer in group]
        if 1 < len([*layers[0].children()]) <= MOST_PARTS and not isinstance(layers[0], torch.nn.ModuleList):
            seen = Seen()
            rerun.array(wired(layers[:1], seen=seen))
            for child in seen.given:
                for says, reads in otherwise(layers[0], child, seen) if child else ():
                    torch_says = f"gives {named(name, child, len(layers))} {source(child, seen)}"
                    yield Alteration(torch_says, f"gives it {says}", partial(wired, layers, child=child, reads=reads))


def named(layer: str, child: str, count: int) -> str:
    """Of a child, in one layer or in all."""
    path = f"{layer}.{child}" if layer else child
    return path if count == 1 else re.sub(r"\b\d+\b", "*", path)


def source(child: str, seen: Seen) -> str:
    """What torch gives it, in words."""
    x = seen.given[child]
    makes = (name for name, y in seen.gave.items() if name != child and y.shape == x.shape and torch.equal(x, y))
    name = next(makes, None)
    return "its own input" if name is None else f"what {name} gives"


def otherwise(layer: Any, child: str, seen: Seen) -> Iterator[tuple[str, Reads]]:
    """What else it may be given, of what torch's layer has by then: the plain ones first."""
    x = seen.given[child]
    before = [*seen.given][: [*seen.given].index(child)]
    made = [name for name in before if name and name in seen.gave and seen.gave[name].shape == x.shape]
    made = [name for name in made if not same(seen.given[name], seen.gave[name])]
    if is_another(x, seen.given.get("")):
        yield "what the layer is given", lambda layer, seen: seen.given[""]
    for name in made:
        if is_another(x, seen.gave[name]):
            yield f"what {name} gives", lambda layer, seen, name=name: seen.gave[name]
        yield f"that plus what {name} gives", lambda layer, seen, name=name: seen.given[child] + seen.gave[name]
    for norm, other in combinations(made, 2):
        if keeps_a_shape(layer.get_submodule(norm)):
            yield f"{norm} of its input plus what {other} gives", partial(normed_sum, norm, other)


def is_another(x: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether an array fits where one stands, and is not the same."""
    return other is not None and other.shape == x.shape and not torch.equal(other, x)


def normed_sum(norm: str, other: str, layer: Any, seen: Seen) -> torch.Tensor:
    """What a norm makes of what it was given and what another child gave."""
    module = layer.get_submodule(norm)
    return type(module).forward(module, seen.given[norm] + seen.gave[other])  # jax may have its call too, whose output stays


@contextmanager
def wired(layers: list[Any], seen: Seen | None = None, child: str = "", reads: Reads | None = None) -> Iterator[None]:
    """Inside, what is seen of each layer is noted, and a child is given what it `reads`."""
    with ExitStack() as stack:
        for layer in layers:
            noted = seen or Seen()
            for name, module in {"": layer, **dict(layer.named_children())}.items():
                other = partial(reads, layer, noted) if reads and name == child else None
                passed = wraps(module.forward)(partial(passing, noted, name, module.forward, other))
                stack.enter_context(mock.patch.object(module, "forward", passed))
        yield


def passing(seen: Seen, name: str, forward: Any, reads: Any, *args: Any, **kwargs: Any) -> Any:
    """One call of a module."""
    every = arrays_in((args, kwargs))
    if (first := next(filter(of_reals, every), None)) is not None:
        seen.given[name] = first
        if reads:
            args, kwargs = replaced((args, kwargs), every, [reads() if x is first else x for x in every])
    output = forward(*args, **kwargs)
    if (first := next(filter(of_reals, arrays_in(output)), None)) is not None:
        seen.gave[name] = first
    return output
