"""Steps of torch's recurrences, one and all of them, with one thing in a step or in a direction otherwise."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

State = tuple[torch.Tensor, ...]
"""Of one layer in one direction: what it gives, and the cell of an LSTM."""
Weights = tuple[torch.Tensor, ...]
"""Of one layer in one direction: of its input, of its state, the bias of its input, the bias of its state."""
Step = Callable[..., State]
"""step(state, x, weights)"""
Function = Callable[[torch.Tensor], torch.Tensor]
Gates = tuple[Any, ...]
"""A function for each gate; None for the forget gate is 1 less the input gate."""
SIGMOIDS: Gates = (torch.sigmoid,) * 3


class Order(NamedTuple):
    """How positions are gone through: whether those of the second direction are `turned` before it and turned `back` behind it;
    whether the states are given that steps begin with; whether each layer gives the second direction before the first."""

    turned: bool = True
    back: bool = True
    before: bool = False
    second_first: bool = False


def lstm(
    state: State, x: Any, weights: Weights, new: Function = torch.tanh, out: Function = torch.tanh, gates: Gates = SIGMOIDS
) -> State:
    """With the functions of its new cell, of its output and of its `gates` input, forget and output."""
    w, u, b, c = weights
    i, f, g, o = (x @ w.T + b + state[0] @ u.T + c).chunk(4, -1)
    i, o = gates[0](i) if gates[0] else 1 - gates[1](f), gates[2](o)
    cell = (gates[1](f) if gates[1] else 1 - i) * state[1] + i * new(g)
    return o * out(cell), cell


def gru(state: State, x: Any, weights: Weights, new: Function = torch.tanh, gates: Gates = SIGMOIDS) -> State:
    """With the functions of its new gate, and of its `gates` reset and update."""
    w, u, b, c = weights
    (xr, xz, xn), (ur, uz, un) = (x @ w.T + b).chunk(3, -1), (state[0] @ u.T + c).chunk(3, -1)
    r, z = gates[0](xr + ur), gates[1](xz + uz)
    return ((1 - z) * new(xn + r * un) + z * state[0],)


def reset_first(state: State, x: Any, weights: Weights) -> State:
    """n = tanh(W x + b + U (r h) + c)"""
    w, u, b, c = weights
    (h,), (ur, uz, un), (cr, cz, cn) = state, u.chunk(3), c.chunk(3)
    xr, xz, xn = (x @ w.T + b).chunk(3, -1)
    r, z = (xr + h @ ur.T + cr).sigmoid(), (xz + h @ uz.T + cz).sigmoid()
    return ((1 - z) * (xn + (r * h) @ un.T + cn).tanh() + z * h,)


def plain(state: State, x: Any, weights: Weights, new: Function = torch.tanh) -> State:
    """A step of Elman's."""
    w, u, b, c = weights
    return (new(x @ w.T + b + state[0] @ u.T + c),)


OWN: dict[str, Step] = {"lstm": lstm, "gru": gru, "rnn_tanh": plain, "rnn_relu": partial(plain, new=torch.relu)}
"""torch's."""


def stepped(step: Step, state: State, x: torch.Tensor, arrays: Any) -> State:
    """One step, with weights and biases."""
    w, u, *biases = arrays
    return step(state, x, (w, u, *(biases or (torch.zeros(len(w), dtype=x.dtype),) * 2)))


def of_cell(step: Step, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """One step of a cell, which torch's code calls in a loop of its own."""
    x, state, *arrays = args
    states = (state,) if isinstance(state, torch.Tensor) else tuple(state)
    found = stepped(step, states, x, [array for array in arrays if array is not None])
    return found[0] if isinstance(state, torch.Tensor) else found


def by_steps(order: Order, step: Step, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """All positions."""
    x, hidden, arrays, biased, layers, _, _, both_ways, batch_first = args
    hidden = (hidden,) if isinstance(hidden, torch.Tensor) else hidden
    x = x.transpose(0, 1) if batch_first else x
    size, ways, ends = 4 if biased else 2, 2 if both_ways else 1, []
    for number in range(0, layers * ways, ways):
        found = []
        for way in range(ways):
            own = arrays[size * (number + way) : size * (number + way + 1)]
            state, outputs = tuple(each[number + way] for each in hidden), []
            for each in x.flip(0) if way and order.turned else x:
                last, state = state, stepped(step, state, each, own)
                outputs.append((last if order.before else state)[0])
            ends.append(state)
            found.append(torch.stack(outputs[::-1] if way and order.back else outputs))
        x = torch.cat(found[::-1] if order.second_first else found, -1)
    return (x.transpose(0, 1) if batch_first else x), *map(torch.stack, zip(*ends, strict=True))


def backwards(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """From the last position to the first."""
    axis = int(args[-1])
    output, *state = function(args[0].flip(axis), *args[1:], **kwargs)
    return (output.flip(axis), *state)


def directions_exchanged(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """What the second direction gives comes first."""
    output, *state = function(*args, **kwargs)
    return (torch.cat(output.chunk(2, -1)[::-1], -1), *state)
