"""Mutations of torch's recurrences, each of which is one operation: gates, biases, what a step computes, directions."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.computes import Compute, behind
from jaxformer.parity.diagnose.mutation import Change, Proposal, words_of
from jaxformer.parity.diagnose.trace import Op

State = tuple[torch.Tensor, ...]
"""State of one layer in one direction: its output, and the cell of an LSTM."""
Weights = tuple[torch.Tensor, ...]
"""Tensors of one layer in one direction: weight_ih, weight_hh, bias_ih, bias_hh."""
Step = Callable[..., State]
"""step(state, x, weights) -> the next state."""
Function = Callable[[torch.Tensor], torch.Tensor]
Gates = tuple[Any, ...]
"""Function of each gate. None, for an LSTM's input or forget gate: 1 minus the other one."""
SIGMOIDS: Gates = (torch.sigmoid,) * 3


class Order(NamedTuple):
    """Order in which a recurrence runs over positions and joins its directions."""

    turned: bool = True
    """True if the second direction reads the positions in reverse order."""
    back: bool = True
    """True if the second direction's outputs are reversed back."""
    before: bool = False
    """True if the outputs are the states before each step."""
    second_first: bool = False
    """True if each layer joins the second direction before the first."""
    past: tuple[bool, bool] = (False, False)
    """True for each direction that reads the padding of packed sequences too, as zeros."""


def lstm(
    state: State, x: Any, weights: Weights, new: Function = torch.tanh, out: Function = torch.tanh, gates: Gates = SIGMOIDS
) -> State:
    """Compute a step of an LSTM, with the functions of the new cell, of the output, and of the input, forget and output
    `gates`."""
    w, u, b, c = weights
    i, f, g, o = (x @ w.T + b + state[0] @ u.T + c).chunk(4, -1)
    i, o = gates[0](i) if gates[0] else 1 - gates[1](f), gates[2](o)
    cell = (gates[1](f) if gates[1] else 1 - i) * state[1] + i * new(g)
    return o * out(cell), cell


def gru(state: State, x: Any, weights: Weights, new: Function = torch.tanh, gates: Gates = SIGMOIDS) -> State:
    """Compute a step of a GRU, with the functions of the new gate, and of the reset and update `gates`."""
    w, u, b, c = weights
    (xr, xz, xn), (ur, uz, un) = (x @ w.T + b).chunk(3, -1), (state[0] @ u.T + c).chunk(3, -1)
    r, z = gates[0](xr + ur), gates[1](xz + uz)
    return ((1 - z) * new(xn + r * un) + z * state[0],)


def reset_first(state: State, x: Any, weights: Weights) -> State:
    """Compute a step of a GRU that applies the reset gate first: n = tanh(W x + b + U (r h) + c)."""
    w, u, b, c = weights
    (h,), (ur, uz, un), (cr, cz, cn) = state, u.chunk(3), c.chunk(3)
    xr, xz, xn = (x @ w.T + b).chunk(3, -1)
    r, z = (xr + h @ ur.T + cr).sigmoid(), (xz + h @ uz.T + cz).sigmoid()
    return ((1 - z) * (xn + (r * h) @ un.T + cn).tanh() + z * h,)


def plain(state: State, x: Any, weights: Weights, new: Function = torch.tanh) -> State:
    """Compute a step of an Elman RNN."""
    w, u, b, c = weights
    return (new(x @ w.T + b + state[0] @ u.T + c),)


OWN: dict[str, Step] = {"lstm": lstm, "gru": gru, "rnn_tanh": plain, "rnn_relu": partial(plain, new=torch.relu)}
"""Steps as torch computes them."""


def stepped(step: Step, state: State, x: torch.Tensor, arrays: Any) -> State:
    """Compute one step from a layer's weights and biases; zeros where it has no biases."""
    w, u, *biases = arrays
    return step(state, x, (w, u, *(biases or (torch.zeros(len(w), dtype=x.dtype),) * 2)))


def of_cell(step: Step, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute one step of a cell, such as `lstm_cell`, which the user's code calls in a loop of its own."""
    x, state, *arrays = args
    states = (state,) if isinstance(state, torch.Tensor) else tuple(state)
    found = stepped(step, states, x, [array for array in arrays if array is not None])
    return found[0] if isinstance(state, torch.Tensor) else found


def is_packed(args: Any) -> bool:
    """True if a recurrence is given packed sequences: `args[1]` is the number of sequences at each position."""
    return isinstance(args[1], torch.Tensor) and not args[1].is_floating_point()


def unpacked(x: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack sequences to `T B D`, with zeros for padding; and the mask `T B 1`, True where there is no padding."""
    valid = torch.arange(int(counts[0])) < counts[:, None]
    return x.new_zeros(*valid.shape, x.shape[-1]).masked_scatter(valid[..., None], x), valid[..., None]


def by_steps(order: Order, step: Step, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a recurrence step by step: all layers, directions and positions."""
    packed, (x, *others) = is_packed(args), args
    counts = others.pop(0) if packed else None
    hidden, arrays, biased, layers, _, _, both_ways, *rest = others
    hidden, batch_first = (hidden,) if isinstance(hidden, torch.Tensor) else hidden, rest == [True]
    x = x.transpose(0, 1) if batch_first else x
    x, valid = (x, x.new_ones(*x.shape[:2], 1).bool()) if counts is None else unpacked(x, counts)
    size, ways, ends = 4 if biased else 2, 2 if both_ways else 1, []
    for number in range(0, layers * ways, ways):
        found = []
        for way in range(ways):
            own = arrays[size * (number + way) : size * (number + way + 1)]
            state, outputs = tuple(each[number + way] for each in hidden), []
            reads, goes_on = ((each.flip(0) if way and order.turned else each) for each in (x, valid | order.past[way]))
            for each, moves in zip(reads, goes_on, strict=True):
                new = stepped(step, state, each, own)
                last, state = state, tuple(torch.where(moves, new, old) for new, old in zip(new, state, strict=True))
                outputs.append((last if order.before else state)[0])
            ends.append(state)
            found.append(torch.stack(outputs[::-1] if way and order.back else outputs))
        x = torch.cat(found[::-1] if order.second_first else found, -1)
    y = x[valid[..., 0]] if packed else x.transpose(0, 1) if batch_first else x
    return y, *map(torch.stack, zip(*ends, strict=True))


def backwards(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a recurrence from the last position to the first."""
    axis = int(args[-1])
    output, *state = function(args[0].flip(axis), *args[1:], **kwargs)
    return (output.flip(axis), *state)


def directions_exchanged(outputs: Any) -> Any:
    """Compute a recurrence whose second direction's output comes first."""
    output, *state = outputs
    return (torch.cat(output.chunk(2, -1)[::-1], -1), *state)


GATES = {"gru": ("reset", "update", "new"), "lstm": ("input", "forget", "cell", "output"), "rnn_tanh": (), "rnn_relu": ()}
"""Names of the gates, in the order in which torch's weights and biases stack their blocks."""
Blocks = list[torch.Tensor]
"""Weight or bias as one block for each gate, or a list of weights and biases."""
OfBlock = Callable[..., torch.Tensor]
"""change(block, kind) -> another block; the kind is one of `KINDS`, such as 'bias_hh'."""
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CELL = "_cell"
OPEN = 1e3
"""Bias with which a sigmoid is 1."""
GATE_ORDER = Change("recurrences.gate_order", "has its gates in the order {order} in weights and biases")
NO_BIAS = Change("recurrences.no_bias", "leaves out {bias}")
BIAS_BEHIND_GATE = Change("recurrences.bias_behind_gate", "adds the new gate's bias_hh after the product with the reset gate")
HARD_SIGMOIDS = Change("recurrences.hard_sigmoids", "has {sigmoid} for every sigmoid")
HARD_SIGMOID = Change("recurrences.hard_sigmoid", "has {sigmoid} in the {gate} gate")
OF_GATE: dict[str, tuple[str, OfBlock]] = {
    "complement": ("uses 1 - {gate} gate for it", lambda x, kind: -x),
    "open": ("leaves out the {gate} gate (1)", lambda x, kind: x + OPEN * (kind == "bias_ih")),
    "bias": ("adds 1 to the {gate} gate's bias", lambda x, kind: x + 1.0 * (kind == "bias_ih")),
}
"""Mutations of the blocks of one gate."""
SIGMOID = torch.sigmoid
HARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hard sigmoid 0.2 x + 0.5": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "hard sigmoid x / 6 + 0.5": torch.nn.functional.hardsigmoid,
}
"""Piecewise linear functions for a sigmoid."""
STEPS: dict[str, dict[str, tuple[str, Step]]] = {
    "lstm": {
        "plain_output": ("leaves out the tanh of its output", partial(lstm, out=torch.positive)),
        "plain_cell": ("leaves out the tanh of the cell gate", partial(lstm, new=torch.positive)),
        "sigmoid_cell": ("has a sigmoid for the tanh of the cell gate", partial(lstm, new=SIGMOID)),
        "tied_forget": ("uses 1 - input gate for the forget gate", partial(lstm, gates=(SIGMOID, None, SIGMOID))),
        "tied_input": ("uses 1 - forget gate for the input gate", partial(lstm, gates=(None, SIGMOID, SIGMOID))),
    },
    "gru": {
        "reset_first": ("applies the reset gate to the state before weight_hh, not after", reset_first),
        "plain_new": ("leaves out the tanh of the new gate", partial(gru, new=torch.positive)),
        "relu_new": ("has relu for the tanh of the new gate", partial(gru, new=torch.relu)),
    },
    "rnn_tanh": {
        "relu": ("has relu for tanh", partial(plain, new=torch.relu)),
        "no_tanh": ("leaves out the tanh", partial(plain, new=torch.positive)),
    },
    "rnn_relu": {
        "tanh": ("has tanh for relu", plain),
        "no_relu": ("leaves out the relu", partial(plain, new=torch.positive)),
    },
}
ORDERS: dict[str, tuple[str, Order | Compute]] = {
    "backwards": ("runs backwards", backwards),
    "before": ("gives the state before each step, not after it", Order(before=True)),
}
BOTH_DIRECTIONS: dict[str, tuple[str, Order | Compute]] = {
    "aligned": ("runs the second direction forwards too", Order(turned=False, back=False)),
    "given_turned": ("does not reverse the second direction's outputs back", Order(back=False)),
    "read_unturned": ("does not reverse the second direction's inputs", Order(turned=False)),
    "exchanged": ("exchanges the weights of its two directions", behind(directions_exchanged)),
    "second_first": ("joins the second direction before the first, in every layer", Order(second_first=True)),
}
GATE = Change("recurrences.gate", words_of(OF_GATE))
STEP = Change("recurrences.step", {how: words for steps in STEPS.values() for how, words in words_of(steps).items()})
PACKED: dict[str, tuple[str, Order | Compute]] = {
    "past": ("goes on through the padding", Order(past=(True, True))),
    "first_past": ("goes on through the padding in the first direction", Order(past=(True, False))),
    "second_past": ("begins the second direction in the padding", Order(past=(False, True))),
}
DIRECTION = Change("recurrences.direction", words_of(ORDERS | BOTH_DIRECTIONS | PACKED))


def proposals(op: Op) -> Iterator[Proposal]:
    """Mutations of a recurrence, or of a cell."""
    kind, cell = op.name.removesuffix(CELL), op.name.endswith(CELL)
    if kind not in GATES or len(op.args) < (4 if cell else 9):
        return
    yield from gates(op, GATES[kind])
    for bias in KINDS[2:]:
        zeroed = partial(changed_blocks, None, lambda x, kind, bias=bias: x * (kind != bias))
        yield op.instead(NO_BIAS, partial(with_blocks, zeroed), bias=bias)
    if kind == "gru":
        yield op.instead(BIAS_BEHIND_GATE, partial(with_arrays, bias_moved))
    all_steps = of_cell if cell else partial(by_steps, Order())
    for how, (_, step) in STEPS[kind].items():
        yield op.instead(STEP, partial(all_steps, step), how=how)
    sigmoids = [gate for gate in GATES[kind] if gate not in ("cell", "new")]
    for sigmoid, hard in HARD.items() if sigmoids else ():
        yield op.instead(HARD_SIGMOIDS, partial(all_steps, partial(OWN[kind], gates=[hard] * 3)), sigmoid=sigmoid)
        for gate in sigmoids:
            step = partial(OWN[kind], gates=[hard if each == gate else SIGMOID for each in sigmoids])
            yield op.instead(HARD_SIGMOID, partial(all_steps, step), sigmoid=sigmoid, gate=gate)
    packed = is_packed(op.args)
    both = not cell and op.args[-1 if packed else -2]
    ways = {} if cell else (PACKED if packed else ORDERS) | (BOTH_DIRECTIONS if both else {})
    for how, (_, way) in ways.items():
        yield op.instead(DIRECTION, partial(by_steps, way, OWN[kind]) if isinstance(way, Order) else way, how=how)


def gates(op: Op, names: tuple[str, ...]) -> Iterator[Proposal]:
    """Mutations of the order of the gates, and of each gate."""
    for order in [*itertools.permutations(range(len(names)))][1:]:
        yield op.instead(GATE_ORDER, partial(with_blocks, partial(reordered, order)), order=[names[i] for i in order])
    for number, gate in enumerate(names):
        for how, (_, other) in OF_GATE.items():
            yield op.instead(GATE, partial(with_blocks, partial(changed_blocks, number, other)), how=how, gate=gate)


def with_blocks(change: Callable[[str, Blocks], Blocks], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Call the function with other blocks of weights and biases, one for each gate: `change('bias_hh', blocks)`."""
    count = max(1, len(GATES[function.__name__.removesuffix(CELL)]))

    def changed(arrays: Blocks) -> Blocks:
        kinds = KINDS if any(array.ndim == 1 for array in arrays) else KINDS[:2]
        return [torch.cat(change(kinds[i % len(kinds)], [*array.chunk(count)])) for i, array in enumerate(arrays)]

    return with_arrays(changed, function, args, kwargs, n)


def with_arrays(change: Callable[[Blocks], Blocks], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Call the function with other weights and biases, which a cell takes as separate arguments."""
    at = 3 if is_packed(args) else 2
    if isinstance(args[at], (tuple, list)):
        return function(*args[:at], change([*args[at]]), *args[at + 1 :], **kwargs)
    return function(*args[:2], *change([array for array in args[2:] if array is not None]), **kwargs)


def reordered(order: Sequence[int], kind: str, blocks: Blocks) -> Blocks:
    """Return blocks in torch's order of gates, from blocks that lie in the order `order`."""
    return [blocks[order.index(gate)] for gate in range(len(blocks))]


def changed_blocks(number: int | None, change: OfBlock, kind: str, blocks: Blocks) -> Blocks:
    """Change the block of gate `number`; None: of all gates."""
    return [change(block, kind) if number in (i, None) else block for i, block in enumerate(blocks)]


def bias_moved(arrays: Blocks) -> Blocks:
    """Move the new gate's bias_hh into bias_ih: n = tanh(W x + b + r (U h) + c), where torch has r (U h + c)."""
    arrays = [array.clone() for array in arrays]
    biases = [array for array in arrays if array.ndim == 1]
    for ih, hh in zip(biases[::2], biases[1::2], strict=True):
        ih.chunk(3)[2].add_(hh.chunk(3)[2])
        hh.chunk(3)[2].zero_()
    return arrays
