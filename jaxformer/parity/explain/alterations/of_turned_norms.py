"""Norms of queries and keys on the other side of the rotation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.capture.module_paths import last
from jaxformer.parity.explain.alterations.altered import Alteration, Inside, together
from jaxformer.parity.explain.alterations.of_children import its_input, path_of
from jaxformer.parity.explain.alterations.of_layers import starred
from jaxformer.parity.explain.alterations.of_modules import replaced
from jaxformer.parity.explain.alterations.of_norms import NORMALIZED
from jaxformer.parity.explain.alterations.of_places import norms
from jaxformer.parity.explain.alterations.operations import Altered, Compute, Listing, Operation, Place
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.alterations.rotary_tables import parts, put

NEAR = 1e-9
SIDES = {"behind": "before", "before": "behind"}
Function = Callable[[torch.Tensor], torch.Tensor]


class Norm(NamedTuple):
    """A norm of heads that is called once."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    forward: Function
    made: Any
    """The operation, or the module."""
    run: int = 0


class Turned(NamedTuple):
    """A norm, and the other side of what is rotated behind or before it."""

    norm: Norm
    other: Operation
    """Behind which it comes there."""
    run: int
    part: int
    """Of what it gives."""
    side: str
    """Where jax has it: 'behind' the rotation, or 'before' it."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Both together first, and then one alone; or the one whose input is compared."""
    yield from of_its_input(rerun)
    found = [*turned(rerun)]
    for side, own in SIDES.items():
        those = [each for each in found if each.side == side]
        by_name: dict[str, list[Turned]] = {}
        for each in those:
            by_name.setdefault(starred(each.norm.name), []).append(each)
        for some in (those, *(by_name.values() if len(by_name) > 1 else ())):
            if some:
                names = " and ".join(dict.fromkeys(name_of(each.norm, some) for each in some))
                yield Alteration(f"{names} {own} the rotation", f"{side} it", partial(elsewhere, some))


def name_of(norm: Norm, others: list[Turned]) -> str:
    """Starred where there are several of that name."""
    name = starred(norm.name)
    return name if len({each.norm.name for each in others if starred(each.norm.name) == name}) > 1 else norm.name


def of_its_input(rerun: Rerun) -> Iterator[Alteration]:
    """What a norm is given, where jax has it rotated by then."""
    site, listing = rerun.place.site, Listing()
    if rerun.place.part != "inputs" or not (module := norms(rerun).get(str(site).removeprefix(f"{path_of(rerun)}."))):
        return
    x = torch.from_numpy(rerun.wanted)
    with rerun.to_the_end():
        rerun.array(together(replaced(module, "forward", its_input), listing))
    runs = (run.output for each in listing.operations.values() for run in each.runs)
    made = (each for output in runs for each in parts(output) if is_like(each, x) and is_rotated(each, x))
    if found := [ordered for each in made if (ordered := in_order_of(x, each)) is not None]:
        said = f"{last(site.path)} before the rotation", "behind it"
        yield Alteration(*said, lambda: rerun.followed_by(lambda array: found[-1]))


def in_order_of(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    """What has vectors of the same lengths, in the same order of axes."""
    for each in (output, output.transpose(1, -2)):
        if each.shape == x.shape and torch.allclose(each.square().sum(-1), x.square().sum(-1), rtol=NEAR, atol=0):
            return each
    return None


def turned(rerun: Rerun) -> Iterator[Turned]:
    """Every norm whose heads have the lengths of what another operation gives, and other numbers: that is their rotation."""
    known = [*of_modules(rerun)]
    runs = [(each, n, run) for each in rerun.listed for n, run in enumerate(each.runs)]
    every = [((each, n, part), output) for each, n, run in runs for part, output in enumerate(parts(run.output))]
    for norm in (*known, *of_functions(rerun, known)):
        made = [(at, output) for at, output in every if is_like(output, norm.y)]
        behind = [at for at, output in made if is_rotated(output, norm.y)]
        before = [at for at, output in made if is_rotated(output, norm.x)]
        if behind:
            yield Turned(norm, *behind[-1], "behind")
        if before:
            yield Turned(norm, *before[0], "before")


def of_modules(rerun: Rerun) -> Iterator[Norm]:
    """Those that are modules."""
    calls: dict[str, list[Norm]] = {}
    rerun.array(together(*(watched(name, module, calls) for name, module in norms(rerun).items())))
    yield from (each[0] for each in calls.values() if len(each) == 1)


@contextmanager
def watched(name: str, module: Any, calls: dict[str, list[Norm]]) -> Iterator[None]:
    """Inside, the calls of a module are noted."""
    forward = module.forward

    def noted(x: Any, *args: Any, **kwargs: Any) -> Any:
        y = forward(x, *args, **kwargs)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.ndim > 2 and x.shape == y.shape:
            calls.setdefault(name, []).append(Norm(name, x.clone(), y.clone(), forward, module))
        return y

    with replaced(module, "forward", noted):
        yield


def of_functions(rerun: Rerun, known: list[Norm]) -> Iterator[Norm]:
    """Those that code computes by a function of torch's."""
    for operation in rerun.listed:
        for n, run in enumerate(operation.runs if operation.name in NORMALIZED else ()):
            x, *others = run.args
            if x.ndim > 2 and not any(x.shape == each.x.shape and torch.equal(x, each.x) for each in known):

                def forward(x: torch.Tensor, operation: Any = operation, others: Any = others, run: Any = run) -> torch.Tensor:
                    return operation.function(x, *others, **run.kwargs)

                yield Norm(operation.source, x, run.output, forward, operation, n)


def elsewhere(those: list[Turned]) -> Inside:
    """Inside, norms are left out in their places, and come behind other operations."""
    computes: dict[Place, dict[int, Compute]] = {}
    for at in {(each.other.place, each.run) for each in those}:
        behind = {each.part: each.norm.forward for each in those if (each.other.place, each.run) == at}
        computes.setdefault(at[0], {})[at[1]] = partial(followed, behind)
    functions = [each.norm for each in those if isinstance(each.norm.made, Operation)]
    modules = [each.norm.made for each in those if not isinstance(each.norm.made, Operation)]
    for norm in functions:
        computes.setdefault(norm.made.place, {})[norm.run] = its_operand
    left_out = (replaced(module, "forward", its_input) for module in modules)
    return together(*left_out, Altered({place: partial(in_runs, ways) for place, ways in computes.items()}))


def in_runs(computes: dict[int, Compute], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Something else in some of its runs."""
    return computes[n](function, args, kwargs) if n in computes else function(*args, **kwargs)


def its_operand(function: Any, args: Any, kwargs: Any) -> Any:
    """The first."""
    return args[0]


def followed(norms: dict[int, Function], function: Any, args: Any, kwargs: Any) -> Any:
    """Norms behind parts of what an operation gives."""
    output = function(*args, **kwargs)
    given = parts(output)
    return put(output, {i: norm(given[i]) for i, norm in norms.items()})


def is_like(output: Any, y: torch.Tensor) -> bool:
    """Whether an operation gives as many heads of that width."""
    floats = isinstance(output, torch.Tensor) and output.is_floating_point()
    return floats and output.numel() == y.numel() and output.shape[-1] == y.shape[-1]


def is_rotated(output: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether two arrays have vectors of the same lengths, in whatever order, and other numbers."""
    lengths = [each.square().sum(-1).flatten().sort().values for each in (output, x)]
    return torch.allclose(lengths[0], lengths[1], rtol=NEAR, atol=0) and not same_numbers(output, x)


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they differ in their order and their signs alone, as two halves that were exchanged."""
    numbers = [each.abs().flatten().sort().values for each in (one, other)]
    return torch.allclose(numbers[0], numbers[1], rtol=NEAR, atol=0)
