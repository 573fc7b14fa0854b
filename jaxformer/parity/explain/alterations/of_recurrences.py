"""What may be otherwise in torch's GRU and LSTM, each of which is one operation: which gate is which, and where they act."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation

GATES = {"gru": ("reset", "update", "new"), "lstm": ("input", "forget", "cell", "output")}
"""In torch's order, in which weights and biases have them one below the other."""
Blocks = list[torch.Tensor]
Change = Callable[[str, Blocks], Sequence[torch.Tensor]]
"""change('bias_hh', its blocks), one for each gate."""
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
OPEN = 1e3
"""A bias beside which a sigmoid is 1."""


def alterations_of(operation: Operation) -> Iterator[Alteration]:
    """Of one that is not given packed sequences."""
    gates = GATES.get(operation.name, ())
    if not gates or not isinstance(operation.args[2], (tuple, list)):
        return
    for order in [*itertools.permutations(range(len(gates)))][1:]:
        says = f"has its gates in the order {', '.join(gates[i] for i in order)}"
        yield instead(operation, says, partial(with_blocks, partial(reordered, order)))
    for number, gate in enumerate(gates):
        yield instead(operation, f"has 1 less the {gate} gate", partial(with_blocks, partial(negated, number)))
        yield instead(operation, f"has 1 for the {gate} gate", partial(with_blocks, partial(raised, number, OPEN)))
        yield instead(operation, f"has 1 more in the {gate} gate's bias", partial(with_blocks, partial(raised, number, 1.0)))
    for kind in KINDS[2:]:
        yield instead(operation, f"has no {kind}", partial(with_blocks, partial(zeroed, kind)))
    yield instead(operation, "runs backwards", backwards)
    if operation.name == "gru":
        says = "has the reset gate on the state, before its product with weight_hh"
        yield instead(operation, says, partial(by_steps, reset_first))
        says = "adds the new gate's bias_hh behind the reset gate"
        yield instead(operation, says, bias_moved)


def with_blocks(change: Change, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function of other weights."""
    kinds, count = KINDS if args[3] else KINDS[:2], len(GATES[function.__name__])
    arrays = [*args[2]]
    for start in range(0, len(arrays), len(kinds)):
        blocks = [array.chunk(count) for array in arrays[start : start + len(kinds)]]
        changed = [change(kind, [*each]) for kind, each in zip(kinds, blocks, strict=True)]
        arrays[start : start + len(kinds)] = [torch.cat([*each]) for each in changed]
    return function(*args[:2], arrays, *args[3:], **kwargs)


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


def bias_moved(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """n = tanh(W x + b + r (U h) + c), where torch has r (U h + c)."""
    arrays = [array.clone() for array in args[2]]
    for ih, hh in zip(arrays[2::4], arrays[3::4], strict=True) if args[3] else ():
        ih.chunk(3)[2].add_(hh.chunk(3)[2])
        hh.chunk(3)[2].zero_()
    return function(*args[:2], arrays, *args[3:], **kwargs)


def by_steps(step: Callable[..., torch.Tensor], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A recurrence, step by step."""
    x, states, arrays, biased, layers, _, _, both_ways, batch_first = args
    x = x.transpose(0, 1) if batch_first else x
    size, ends, ways = 4 if biased else 2, [], 2 if both_ways else 1
    for layer in range(layers):
        found = []
        for way in range(ways):
            number = layer * ways + way
            own, h, outputs = arrays[size * number : size * (number + 1)], states[number], []
            for each in x.flip(0) if way else x:
                outputs.append(h := step(each, h, *own))
            ends.append(h)
            found.append(torch.stack(outputs[::-1] if way else outputs))
        x = torch.cat(found, -1)
    return (x.transpose(0, 1) if batch_first else x), torch.stack(ends)


def reset_first(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor, *biases: torch.Tensor) -> torch.Tensor:
    """n = tanh(W x + b + U (r h) + c)"""
    b, c = biases or (torch.zeros(len(w), dtype=x.dtype),) * 2
    (ur, uz, un), (cr, cz, cn) = u.chunk(3), c.chunk(3)
    xr, xz, xn = (x @ w.T + b).chunk(3, -1)
    r, z = (xr + h @ ur.T + cr).sigmoid(), (xz + h @ uz.T + cz).sigmoid()
    return (1 - z) * (xn + (r * h) @ un.T + cn).tanh() + z * h
