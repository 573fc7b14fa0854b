"""What may be otherwise in a loop over positions: what a step reads of the step before, and which end it begins at."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operands import ORDINALS
from jaxformer.parity.explain.alterations.of_operations import is_real
from jaxformer.parity.explain.alterations.operations import Altered, Compute, Operation

FEWEST = 3
"""Steps of a loop."""
JOINED = ("stack", "cat", "concat")


def alterations_of(operations: list[Operation]) -> Iterator[Alteration]:
    """The plain ones first."""
    yield from backwards(operations)
    steps = [each for each in operations if not is_of_layers(each)]
    for operation in steps:
        yield from steps_before(operation)
    for operation in steps:
        yield from begun_again(operation)


def is_of_layers(operation: Operation) -> bool:
    """Whether its runs are those of several modules, one behind the other: such are no steps, whose state is handed on."""
    return len({run.module for run in operation.runs}) > 1


def steps_before(operation: Operation) -> Iterator[Alteration]:
    """What it was given in the step before, as a state that is read before it is renewed."""
    if len(operation.runs) < FEWEST or not is_real(operation):
        return
    tensors = [(i, x) for i, x in enumerate(operation.args) if isinstance(x, torch.Tensor)]
    for name, (i, x) in zip(ORDINALS, tensors, strict=False):
        if x.is_floating_point() and any(differs(run.args[i], x) for run in operation.runs):
            says = f"reads its {name} operand of the step before"
            yield Alteration(f"computes {operation.source}", says, lambda i=i: operation.inside(one_behind(i)))


def begun_again(operation: Operation) -> Iterator[Alteration]:
    """A state that begins with 0 begins with it again after every so many steps, as of chunks that hand nothing on."""
    steps = len(operation.runs)
    for i, x in enumerate(operation.args) if steps >= FEWEST and is_real(operation) else ():
        if isinstance(x, torch.Tensor) and x.ndim and not x.any() and any(differs(run.args[i], x) for run in operation.runs):
            for n in range(2, steps):
                says = f"has 0 for its {ORDINALS[i]} operand after every {n} of its {steps} steps"
                yield Alteration(f"computes {operation.source}", says, lambda i=i, n=n: operation.inside(partial(zeroed, i, n)))


def zeroed(i: int, every: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A function of 0 in some of its steps."""
    return function(*(0 * x if k == i and n % every == 0 else x for k, x in enumerate(args)), **kwargs)


def differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two operands."""
    return one.shape == other.shape and not torch.equal(one, other)


def one_behind(i: int) -> Compute:
    """A function of what it was given before; of zeros, in the first step."""
    last: list[torch.Tensor] = []

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        before = last.pop() if last else torch.zeros_like(args[i])
        last.append(args[i].clone())
        return function(*args[:i], before, *args[i + 1 :], **kwargs)

    return compute


def backwards(operations: list[Operation]) -> Iterator[Alteration]:
    """Steps from the last position to the first: what is read by the step's number, and what is put together of all steps."""
    read: dict[int, dict[Any, Compute]] = defaultdict(dict)
    for each in operations:
        if (steps := counted(each)) >= FEWEST:
            read[steps][each.place] = partial(from_end, steps)
        elif each.name == "unbind" and len(each.output) >= FEWEST:
            read[len(each.output)][each.place] = lambda f, a, k, n: f(*a, **k)[::-1]
    for steps, those in read.items():
        put = [each for each in operations if each.name in JOINED and len(each.runs) == 1 and len(each.args[0]) == steps]
        altered = those | {each.place: turned for each in put}
        says = f"takes its {steps} steps from the first to the last", "from the last to the first"
        yield Alteration(*says, partial(Altered, altered))


def turned(function: Callable[..., Any], args: Any, kwargs: Any, n: int) -> Any:
    """Parts in the other order."""
    return function([*args[0]][::-1], *args[1:], **kwargs)


def counted(operation: Operation) -> int:
    """How many steps read an entry by their number; 0 where they do not."""
    if operation.name != "getitem" or not all(numbers(run.args[1]) == [n] for n, run in enumerate(operation.runs)):
        return 0
    return len(operation.runs)


def numbers(index: Any) -> list[int]:
    """The whole numbers in brackets."""
    return [each for each in (index if isinstance(index, tuple) else (index,)) if type(each) is int]


def from_end(steps: int, function: Callable[..., Any], args: Any, kwargs: Any, n: int) -> Any:
    """The entry of another step."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    other = tuple(steps - 1 - each if type(each) is int else each for each in index)
    return function(args[0], other, **kwargs)
