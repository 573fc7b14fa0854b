"""What may be otherwise in torch's recurrences, each of which is one operation: which gate is which, where they act, what a
step computes, and the directions."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.recurrent_steps import OWN, STEPS, Order, by_steps, of_cell

GATES = {"gru": ("reset", "update", "new"), "lstm": ("input", "forget", "cell", "output"), "rnn_tanh": (), "rnn_relu": ()}
"""In torch's order, in which weights and biases have them one below the other."""
Blocks = list[torch.Tensor]
Change = Callable[[str, Blocks], Sequence[torch.Tensor]]
"""change('bias_hh', its blocks), one for each gate."""
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
OPEN = 1e3
"""A bias beside which a sigmoid is 1."""
CELL = "_cell"


def alterations_of(operation: Operation) -> Iterator[Alteration]:
    """Of one that is not given packed sequences, or of a cell."""
    kind, cell = operation.name.removesuffix(CELL), operation.name.endswith(CELL)
    if kind not in GATES or (isinstance(operation.args[2], torch.Tensor) and not cell):
        return
    yield from gates(operation, GATES[kind])
    for each in KINDS[2:]:
        yield instead(operation, f"has no {each}", partial(with_blocks, partial(zeroed, each)))
    if kind == "gru":
        says = "adds the new gate's bias_hh behind the reset gate"
        yield instead(operation, says, partial(with_arrays, bias_moved))
    for says, step in STEPS[kind].items():
        yield instead(operation, says, partial(of_cell, step) if cell else partial(by_steps, step, Order()))
    if not cell:
        yield from directions(operation, OWN[kind])


def gates(operation: Operation, names: tuple[str, ...]) -> Iterator[Alteration]:
    """Their order, and each of them."""
    for order in [*itertools.permutations(range(len(names)))][1:]:
        says = f"has its gates in the order {', '.join(names[i] for i in order)}"
        yield instead(operation, says, partial(with_blocks, partial(reordered, order)))
    for number, gate in enumerate(names):
        yield instead(operation, f"has 1 less the {gate} gate", partial(with_blocks, partial(negated, number)))
        yield instead(operation, f"has 1 for the {gate} gate", partial(with_blocks, partial(raised, number, OPEN)))
        yield instead(operation, f"has 1 more in the {gate} gate's bias", partial(with_blocks, partial(raised, number, 1.0)))


def directions(operation: Operation, own: Any) -> Iterator[Alteration]:
    """From which end, and what a step gives."""
    yield instead(operation, "runs backwards", backwards)
    yield instead(operation, "gives the state before each step", partial(by_steps, own, Order(before=True)))
    if operation.args[-2]:
        says = "has the second direction's steps in the first one's order"
        yield instead(operation, says, partial(by_steps, own, Order(turned=False, back=False)))
        yield instead(operation, "does not turn what the second one gives", partial(by_steps, own, Order(back=False)))
        yield instead(operation, "does not turn what the second one is given", partial(by_steps, own, Order(turned=False)))
        yield instead(operation, "has its two directions exchanged", directions_exchanged)
        says = "gives the second direction before the first, in every layer"
        yield instead(operation, says, partial(by_steps, own, Order(second_first=True)))


def with_blocks(change: Change, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function of weights whose gates are others."""
    count = max(1, len(GATES[function.__name__.removesuffix(CELL)]))

    def changed(arrays: Blocks) -> Blocks:
        kinds = KINDS if any(array.ndim == 1 for array in arrays) else KINDS[:2]
        return [torch.cat([*change(kinds[i % len(kinds)], [*array.chunk(count)])]) for i, array in enumerate(arrays)]

    return with_arrays(changed, function, args, kwargs, n)


def with_arrays(change: Callable[[Blocks], Blocks], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function of other weights, which a cell is given one by one."""
    if isinstance(args[2], (tuple, list)):
        return function(*args[:2], change([*args[2]]), *args[3:], **kwargs)
    return function(*args[:2], *change([array for array in args[2:] if array is not None]), **kwargs)


def reordered(order: Sequence[int], kind: str, blocks: Blocks) -> Blocks:
    """The gates as they are, where the blocks are those of gates in this order."""
    return [blocks[order.index(gate)] for gate in range(len(blocks))]


def negated(number: int, kind: str, blocks: Blocks) -> Blocks:
    """sigmoid(-x) is 1 - sigmoid(x)."""
    return [-block if i == number else block for i, block in enumerate(blocks)]


def raised(number: int, by: float, kind: str, blocks: Blocks) -> Blocks:
    """One gate's bias."""
    return [block + by if i == number and kind == "bias_ih" else block for i, block in enumerate(blocks)]


def zeroed(which: str, kind: str, blocks: Blocks) -> Blocks:
    """A bias left out."""
    return [0 * block if kind == which else block for block in blocks]


def backwards(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """From the last position to the first."""
    axis = 1 if args[-1] else 0
    output, *state = function(args[0].flip(axis), *args[1:], **kwargs)
    return (output.flip(axis), *state)


def directions_exchanged(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """What the second direction gives comes first."""
    output, *state = function(*args, **kwargs)
    return (torch.cat(output.chunk(2, -1)[::-1], -1), *state)


def bias_moved(arrays: Blocks) -> Blocks:
    """n = tanh(W x + b + r (U h) + c), where torch has r (U h + c)."""
    arrays = [array.clone() for array in arrays]
    for ih, hh in zip(arrays[2::4], arrays[3::4], strict=True):
        ih.chunk(3)[2].add_(hh.chunk(3)[2])
        hh.chunk(3)[2].zero_()
    return arrays
