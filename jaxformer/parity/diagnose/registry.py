"""Registry of the operators, and the order in which they propose mutations: plain ones first, or in turns on a small budget.

An operator that raises gives a warning, and the others go on.
"""

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from jaxformer.errors import message_of
from jaxformer.parity.diagnose.functions import is_activation
from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.operators import (
    arguments,
    attention,
    axes,
    clamped,
    convolutions,
    dropout,
    exchange,
    head_norms,
    indices,
    loops,
    losses,
    masks,
    means,
    operations,
    packing,
    pairs,
    parameters,
    permute,
    placement,
    recurrences,
    reroute,
    rotary,
    rotary_heads,
    routing,
    row_lengths,
    scales,
    tables,
    wiring,
)
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.slices import suspects_of
from jaxformer.parity.diagnose.trace import Op
from jaxformer.parity.runs.session import Session

Proposals = Iterator[Proposal]
Kind = tuple[Proposals, int]
"""Proposals of one kind, and the number of exact candidates after which the kind ends."""
OfOp = Callable[[Op], Proposals]
"""Operator that proposes mutations of one operation."""
REFUSED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions of an operator on code that it does not know."""
MOST_RUNS = 8
"""Largest number of runs of one operation of which each is also mutated alone."""
OF_EACH = 65
"""Number of mutations per operation, roughly; if the budget is too small for so many, the kinds take turns."""
FEW = 0.6
"""Largest share of the operations that is worth to be searched first."""
PARTS: tuple[OfOp, ...] = (recurrences.proposals, indices.proposals, permute.windows, packing.blocks, permute.factors)
SEVERAL = (
    packing.proposals,
    routing.choices,
    scales.proposals,
    placement.biases,
    loops.proposals,
    scales.discretisations,
    clamped.proposals,
)
"""Operators that read the list of all operations."""
OPERANDS = (arguments.literals, operations.sharing, reroute.made_before, pairs.before_sums)
"""Operators of the operands of operations, used one after another."""
ORDERS: tuple[OfOp, ...] = (permute.repeats, permute.merges_and_splits, permute.pixels, packing.inner_parts, permute.transposed)
ALONG: tuple[OfOp, ...] = (operations.at_ends, axes.reductions, axes.rolls, axes.orders, axes.rows_together, axes.other_axes)
AXES: tuple[OfOp, ...] = (permute.joins, *ALONG, *convolutions.KINDS, *ORDERS)
ONE: tuple[OfOp, ...] = (
    operations.replacements,
    operations.poolings,
    arguments.proposals,
    arguments.thresholds,
    operations.omissions,
    operations.repeats,
    operations.exchanges,
    operations.centered,
    operations.outputs,
)
"""Operators of one operation, the plain ones first."""
RESULTS: tuple[OfOp, ...] = (scales.roundings, scales.additions, scales.multiples, scales.limits)


def kinds(replay: Replay, session: Session, runs: float = math.inf) -> tuple[Kind, ...]:
    """Return the proposals kind by kind, each with the number of exact candidates after which it ends. `runs`: replays that
    the budget allows."""
    return Registry(replay, session).kinds(runs)


def every(replay: Replay, session: Session) -> Proposals:
    """Yield all proposals."""
    return itertools.chain.from_iterable(kind for kind, _ in kinds(replay, session))


class Registry:
    """Operators applied to one call of torch's."""

    def __init__(self, replay: Replay, session: Session):
        self.replay, self.session = replay, session

    def kinds(self, runs: float) -> tuple[Kind, ...]:
        """Return the kinds in their order."""
        first = (
            (self.of(losses.proposals, means.proposals, indices.targets), 1),
            (self.of(dropout.proposals), 1),
            (self.of(parameters.constants), 1),
            (self.of(exchange.lists_of_layers, exchange.twins), 1),
        )
        solved = self.of(
            indices.picked, row_lengths.zeroed, row_lengths.proposals, tables.small_tables, tables.rows_of_positions
        )
        last = ((self.in_runs(), 1), (self.of(parameters.in_one_layer), 1), (solved, 1))
        few = runs < OF_EACH * len(self.replay.operations)
        return (*first, *(self.turns() if few else self.one_by_one()), *last)

    def one_by_one(self) -> tuple[Kind, ...]:
        """Return the kinds one by one: the budget allows all proposals."""
        return (
            (self.states(), 1),
            *self.named(),
            (self.of(parameters.readings), 1),
            (self.of(exchange.children, placement.activations), 2),
            (self.of(placement.all_norms, wiring.inputs, wiring.arguments, reroute.arguments), 2),
            (self.of(placement.one_norm), 1),
            (self.of(pairs.everywhere, parameters.in_groups, arguments.in_some), 1),
            (self.in_operations(), 3),
            (itertools.chain(self.wiring(), self.of(reroute.additions)), 1),
            (self.of(exchange.proposals), 2),
            (self.behind_operations(), 3),
            (self.numbers(), 1),
        )

    def turns(self) -> tuple[Kind, ...]:
        """Return the kinds with most of them merged in turns: the budget does not allow all proposals."""
        plain = self.kind_by_kind()
        known = itertools.chain(
            self.of(exchange.children, placement.activations),
            self.wiring(),
            self.of(placement.all_norms, wiring.inputs, wiring.arguments, reroute.arguments, exchange.proposals),
        )
        few = in_turns(*self.of_several())
        several = (
            *(plain, self.states(), known, few, plain, few, plain, known, few, plain),
            *(self.of(parameters.readings), self.limits()),
            *(self.of(placement.one_norm), self.of(reroute.additions)),
            itertools.chain(self.behind_operations(), self.numbers()),
        )
        switches = (each for each in self.states() if not each.free)
        first = (
            (self.of(pairs.everywhere, parameters.in_groups), 1),
            *self.named(),
            (self.of(arguments.in_some), 1),
            (switches, 1),
            (self.of(tables.small_tables), 1),
        )
        every = in_turns(*several)
        return *first, (in_turns(every, every, self.that_may_be_why()), 1)

    def that_may_be_why(self) -> Proposals:
        """Yield proposals for the suspects: operations on which those of jax's entries that are right do not depend.

        Nothing is proposed if the suspects are most of the operations.
        """
        jax, every = self.replay.compared.get(self.replay.place), self.replay.operations
        operations = suspects_of(self.replay.in_time, jax, self.replay.wanted, every)
        if len(operations) <= FEW * len(every):
            near = copy.copy(self.replay)
            near.operations = operations
            there = Registry(near, self.session)
            yield from in_turns(itertools.chain(there.kind_by_kind(), there.numbers()), *there.of_several())

    def named(self) -> tuple[Kind, ...]:
        """Return small kinds of well-known faults: masks, norms of heads, rotary positions, attention."""
        return (
            (self.of(masks.proposals), 1),
            (self.of(head_norms.moves), 1),
            (self.of(head_norms.proposals), 1),
            (self.of(rotary.proposals, rotary_heads.proposals), 1),
            (self.of(indices.counted, indices.segments), 1),
            (self.of(wiring.other_layers), 1),
            (self.of(attention.proposals), 1),
            (self.of(loops.rounds), 1),
        )

    def wiring(self) -> Proposals:
        """Yield mutations of the arrays that the parts of a layer read."""
        return itertools.chain(self.of(wiring.proposals), self.guarded(reroute.last_in_sums, self.replay.operations))

    def states(self) -> Proposals:
        """Yield mutations of the modules' parameters and settings, and of integers that are rounded or overflow."""
        operations = self.replay.operations
        whole = self.guarded(indices.roundings, operations), self.guarded(indices.overflows, operations)
        return itertools.chain(self.of(parameters.proposals), *whole)

    def numbers(self) -> Proposals:
        """Yield mutations of the numbers that operations are given."""
        return self.by_kind(arguments.operand_numbers)

    def in_operations(self) -> Proposals:
        """Yield mutations of each operation, kind by kind; then of several operations and of their operands."""
        for op in self.replay.operations:
            yield from self.of_op(op, *PARTS, *ONE, *AXES)
        for proposals in self.of_several():
            yield from proposals

    def of_several(self) -> list[Proposals]:
        """Return mutations of several operations and of their operands, by kind."""
        operations = self.replay.operations
        return [
            self.of(permute.patches),
            *(self.guarded(each, operations) for each in SEVERAL),
            *(self.of(each) for each in (pairs.proposals, reroute.proposals, axes.proposals)),
            itertools.chain(*(self.guarded(each, operations) for each in OPERANDS)),
        ]

    def kind_by_kind(self) -> Proposals:
        """Yield each kind for all operations, the plain kinds first."""
        for op in self.replay.operations:
            if isinstance(op.output, (tuple, list)):
                yield from self.of_op(op, operations.outputs)
        plain = operations.activations, arguments.epsilons, *PARTS, operations.omissions, operations.exchanges, permute.joins
        yield from self.by_kind(*plain, *ONE, *AXES)

    def limits(self) -> Proposals:
        """Yield mutations that limit the output of activations."""
        for op in filter(is_activation, self.replay.operations):
            yield from self.of_op(op, scales.limits)

    def in_runs(self) -> Proposals:
        """Yield mutations of one run alone, for operations that run several times."""
        for op in self.replay.operations:
            for only in range(len(op.runs)) if 1 < len(op.runs) <= MOST_RUNS else ():
                yield from self.of_op(replace(op, only=only), *ONE)

    def behind_operations(self) -> Proposals:
        """Yield mutations of each operation's output; those with a free parameter come last."""
        last: list[Proposal] = []
        for op in self.replay.operations:
            for proposal in self.of_op(op, *RESULTS):
                if proposal.free:
                    last.append(proposal)
                else:
                    yield proposal
        yield from last

    def by_kind(self, *several: OfOp) -> Proposals:
        """Yield what each operator proposes for all operations, before the next operator's."""
        return itertools.chain.from_iterable(self.of_op(op, each) for each in several for op in self.replay.operations)

    def of_op(self, op: Op, *several: OfOp) -> Proposals:
        """Yield what operators propose for one operation."""
        return itertools.chain.from_iterable(self.guarded(each, op) for each in several)

    def of(self, *several: Callable[[Replay], Proposals]) -> Proposals:
        """Yield what operators propose for the whole call."""
        return itertools.chain.from_iterable(self.guarded(each, self.replay) for each in several)

    def guarded(self, operator: Callable[[Any], Proposals], code: Any) -> Proposals:
        """Yield what an operator proposes; if it raises, warn, and count the failure in the session."""
        try:
            yield from operator(code)
        except REFUSED as error:
            name = f"{operator.__module__.rpartition('.')[2]}.{operator.__name__}"
            self.session.refused[name] += 1
            warnings.warn(
                f"the search for causes by {name} failed: {type(error).__name__}: {message_of(error)}", RuntimeWarning, 2
            )


def in_turns(*several: Proposals) -> Proposals:
    """Yield one proposal of each iterator in turn, until all are used up."""
    left = [*several]
    while left:
        found = [(each, next(each, None)) for each in left]
        left = [each for each, proposal in found if proposal is not None]
        yield from (proposal for _, proposal in found if proposal is not None)
