"""Mutations of torch's recurrences, each of which is one operation: gates, biases, what a step computes, directions."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.operators.recurrent_steps import (
    OWN,
    Order,
    Step,
    backwards,
    by_steps,
    directions_exchanged,
    gru,
    lstm,
    of_cell,
    plain,
    reset_first,
)
from jaxformer.parity.diagnose.trace import Compute, Op

GATES = {"gru": ("reset", "update", "new"), "lstm": ("input", "forget", "cell", "output"), "rnn_tanh": (), "rnn_relu": ()}
"""In torch's order, in which weights and biases have them one below the other."""
Blocks = list[torch.Tensor]
OfBlock = Callable[..., torch.Tensor]
"""change(block, 'bias_hh')"""
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CELL = "_cell"
OPEN = 1e3
"""A bias beside which a sigmoid is 1."""
GATE_ORDER = Change("recurrences.gate_order", "has its gates in the order {order} in weights and biases")
NO_BIAS = Change("recurrences.no_bias", "leaves out {bias}")
BIAS_BEHIND_GATE = Change("recurrences.bias_behind_gate", "adds the new gate's bias_hh behind the product with the reset gate")
HARD_SIGMOIDS = Change("recurrences.hard_sigmoids", "has {sigmoid} for every sigmoid")
HARD_SIGMOID = Change("recurrences.hard_sigmoid", "has {sigmoid} in the {gate} gate")
OF_GATE: dict[Change, OfBlock] = {
    Change("recurrences.complement", "uses 1 - {gate} gate for it"): lambda x, kind: -x,
    Change("recurrences.open", "leaves out the {gate} gate (1)"): lambda x, kind: x + OPEN * (kind == "bias_ih"),
    Change("recurrences.gate_bias", "adds 1 to the {gate} gate's bias"): lambda x, kind: x + 1.0 * (kind == "bias_ih"),
}
"""Blocks of one gate."""
SIGMOID = torch.sigmoid
HARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hard sigmoid 0.2 x + 0.5": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "hard sigmoid x / 6 + 0.5": torch.nn.functional.hardsigmoid,
}
"""What stands for a sigmoid."""
STEPS: dict[str, dict[Change, Step]] = {
    "lstm": {
        Change("recurrences.plain_output", "leaves out the tanh of its output"): partial(lstm, out=torch.positive),
        Change("recurrences.plain_cell", "leaves out the tanh of the cell gate"): partial(lstm, new=torch.positive),
        Change("recurrences.sigmoid_cell", "has a sigmoid for the tanh of the cell gate"): partial(lstm, new=SIGMOID),
        Change("recurrences.tied_forget", "uses 1 - input gate for the forget gate"): partial(
            lstm, gates=(SIGMOID, None, SIGMOID)
        ),
        Change("recurrences.tied_input", "uses 1 - forget gate for the input gate"): partial(
            lstm, gates=(None, SIGMOID, SIGMOID)
        ),
    },
    "gru": {
        Change(
            "recurrences.reset_first",
            "applies the reset gate to the state before weight_hh, not behind",
        ): reset_first,
        Change("recurrences.plain_new", "leaves out the tanh of the new gate"): partial(gru, new=torch.positive),
        Change("recurrences.relu_new", "has relu for the tanh of the new gate"): partial(gru, new=torch.relu),
    },
    "rnn_tanh": {
        Change("recurrences.relu", "has relu for tanh"): partial(plain, new=torch.relu),
        Change("recurrences.no_tanh", "leaves out the tanh"): partial(plain, new=torch.positive),
    },
    "rnn_relu": {
        Change("recurrences.tanh", "has tanh for relu"): plain,
        Change("recurrences.no_relu", "leaves out the relu"): partial(plain, new=torch.positive),
    },
}
DIRECTIONS: dict[Change, Order | Compute] = {
    Change("recurrences.backwards", "runs backwards"): backwards,
    Change("recurrences.before", "gives the state before each step, not behind it"): Order(before=True),
}
BOTH_DIRECTIONS: dict[Change, Order | Compute] = {
    Change("recurrences.aligned", "runs the second direction forwards too"): Order(turned=False, back=False),
    Change("recurrences.given_turned", "does not reverse the second direction's outputs back"): Order(back=False),
    Change("recurrences.read_unturned", "does not reverse the second direction's inputs"): Order(turned=False),
    Change("recurrences.exchanged", "exchanges the weights of its two directions"): directions_exchanged,
    Change("recurrences.second_first", "joins the second direction before the first, in every layer"): Order(second_first=True),
}


def proposals(op: Op) -> Iterator[Proposal]:
    """Mutations of one that is not given packed sequences, or of a cell."""
    kind, cell = op.name.removesuffix(CELL), op.name.endswith(CELL)
    state = op.args[1] if kind in GATES and len(op.args) >= (4 if cell else 9) else None
    if state is None or (isinstance(state, torch.Tensor) and not state.is_floating_point()):
        return
    yield from gates(op, GATES[kind])
    for bias in KINDS[2:]:
        zeroed = partial(changed_blocks, None, lambda x, kind, bias=bias: x * (kind != bias))
        yield op.instead(NO_BIAS, partial(with_blocks, zeroed), bias=bias)
    if kind == "gru":
        yield op.instead(BIAS_BEHIND_GATE, partial(with_arrays, bias_moved))
    all_steps = of_cell if cell else partial(by_steps, Order())
    for change, step in STEPS[kind].items():
        yield op.instead(change, partial(all_steps, step))
    sigmoids = [gate for gate in GATES[kind] if gate not in ("cell", "new")]
    for sigmoid, hard in HARD.items() if sigmoids else ():
        yield op.instead(HARD_SIGMOIDS, partial(all_steps, partial(OWN[kind], gates=[hard] * 3)), sigmoid=sigmoid)
        for gate in sigmoids:
            step = partial(OWN[kind], gates=[hard if each == gate else SIGMOID for each in sigmoids])
            yield op.instead(HARD_SIGMOID, partial(all_steps, step), sigmoid=sigmoid, gate=gate)
    ways = {} if cell else DIRECTIONS | (BOTH_DIRECTIONS if op.args[-2] else {})
    for change, way in ways.items():
        yield op.instead(change, partial(by_steps, way, OWN[kind]) if isinstance(way, Order) else way)


def gates(op: Op, names: tuple[str, ...]) -> Iterator[Proposal]:
    """Mutations of the order of gates, and of each of them."""
    for order in [*itertools.permutations(range(len(names)))][1:]:
        yield op.instead(GATE_ORDER, partial(with_blocks, partial(reordered, order)), order=[names[i] for i in order])
    for number, gate in enumerate(names):
        for change, other in OF_GATE.items():
            yield op.instead(change, partial(with_blocks, partial(changed_blocks, number, other)), gate=gate)


def with_blocks(change: Callable[[str, Blocks], Blocks], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The function of weights and biases whose blocks, one for each gate, are changed: `change('bias_hh', blocks)`."""
    count = max(1, len(GATES[function.__name__.removesuffix(CELL)]))

    def changed(arrays: Blocks) -> Blocks:
        kinds = KINDS if any(array.ndim == 1 for array in arrays) else KINDS[:2]
        return [torch.cat(change(kinds[i % len(kinds)], [*array.chunk(count)])) for i, array in enumerate(arrays)]

    return with_arrays(changed, function, args, kwargs, n)


def with_arrays(change: Callable[[Blocks], Blocks], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The function of other weights, which a cell is given one by one."""
    if isinstance(args[2], (tuple, list)):
        return function(*args[:2], change([*args[2]]), *args[3:], **kwargs)
    return function(*args[:2], *change([array for array in args[2:] if array is not None]), **kwargs)


def reordered(order: Sequence[int], kind: str, blocks: Blocks) -> Blocks:
    """The gates as they are, where the blocks are those of gates in this order."""
    return [blocks[order.index(gate)] for gate in range(len(blocks))]


def changed_blocks(number: int | None, change: OfBlock, kind: str, blocks: Blocks) -> Blocks:
    """Another block of one gate, or of all."""
    return [change(block, kind) if number in (i, None) else block for i, block in enumerate(blocks)]


def bias_moved(arrays: Blocks) -> Blocks:
    """n = tanh(W x + b + r (U h) + c), where torch has r (U h + c)."""
    arrays = [array.clone() for array in arrays]
    biases = [array for array in arrays if array.ndim == 1]
    for ih, hh in zip(biases[::2], biases[1::2], strict=True):
        ih.chunk(3)[2].add_(hh.chunk(3)[2])
        hh.chunk(3)[2].zero_()
    return arrays
