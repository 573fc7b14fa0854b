"""In which order torch's code is altered: the plain changes first; in turns, where there is no time for all of them."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jaxformer.parity.explain.alterations import (
    losses,
    of_activations,
    of_additions,
    of_attention,
    of_axes,
    of_biases,
    of_buffers,
    of_children,
    of_discretisation,
    of_draws,
    of_everywhere,
    of_head_norms,
    of_ids,
    of_joined,
    of_layers,
    of_layouts,
    of_loops,
    of_masks,
    of_norms,
    of_operands,
    of_operations,
    of_other_layers,
    of_overflow,
    of_packing,
    of_pads,
    of_pairs,
    of_parts,
    of_places,
    of_poolings,
    of_reads,
    of_recurrences,
    of_results,
    of_rotations,
    of_routing,
    of_scales,
    of_siblings,
    of_tables,
    of_turned_norms,
    of_twins,
    of_wiring,
)
from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.alterations.that_matter import narrowed

Alterations = Iterator[Alteration | Dial]
Kind = tuple[Alterations, int]
"""Alterations, and how many of them that fit are named."""
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
"""How an alteration cannot be made."""
MOST_RUNS = 4
"""Of one operation, each of which may be altered alone."""
OF_EACH = 65
"""Changes of each operation, about: where there is no time for so many, they take turns."""
FEW = 0.6
"""A part of the operations among which it is worth to look first."""
PARTS = (of_recurrences.alterations_of, of_ids.alterations_of, *of_parts.KINDS)
SEVERAL = (
    of_parts.copies,
    of_packing.alterations_of,
    of_routing.alterations_of,
    of_scales.alterations_of,
    of_biases.alterations_of,
    of_loops.alterations_of,
    of_discretisation.alterations_of,
)
"""Kinds of changes of several operations."""
AXES = (of_joined.alterations_of, *of_axes.KINDS, *of_norms.KINDS, *of_pads.KINDS, *of_layouts.KINDS)


def kinds(rerun: Rerun, runs: float = math.inf) -> tuple[Kind, ...]:
    """Of alterations, and how many of each that fit are named; so many `runs` are left."""
    first = (
        (losses.alterations_of(rerun), 1),
        (of_draws.alterations_of(rerun), 1),
        (of_buffers.alterations_of(rerun), 1),
        (itertools.chain(of_places.layers(rerun), of_twins.alterations_of(rerun)), 1),
    )
    last = ((in_runs(rerun), 1), (of_layers.of_one(rerun), 1), (of_tables.alterations_of(rerun), 1))
    return (*first, *(turns(rerun) if runs < OF_EACH * len(rerun.operations) else one_by_one(rerun)), *last)


def one_by_one(rerun: Rerun) -> tuple[Kind, ...]:
    """Where there is time for all of them."""
    return (
        (states(rerun), 1),
        *named(rerun),
        (of_layers.readings_of(rerun), 1),
        (itertools.chain(of_children.alterations_of(rerun), of_activations.alterations_of(rerun)), 2),
        (of_places.alterations_of(rerun), 2),
        (of_places.moved(rerun), 1),
        (of_everywhere.alterations_of(rerun), 1),
        (in_operations(rerun), 3),
        (itertools.chain(wiring(rerun), of_additions.alterations_of(rerun)), 1),
        (of_siblings.alterations_of(rerun), 2),
        (behind_operations(rerun), 3),
        (numbers(rerun), 1),
    )


def turns(rerun: Rerun) -> tuple[Kind, ...]:
    """Where there is not."""
    children = of_children.alterations_of, of_activations.alterations_of
    those = (*children, wiring, of_places.alterations_of, of_siblings.alterations_of)
    plain, known = kind_by_kind(rerun), itertools.chain.from_iterable(until_refused(each(rerun)) for each in those)
    few = in_turns(*of_several(rerun))
    several = (
        *(plain, states(rerun), known, few, plain, few, plain, known, few, plain),
        *(of_layers.readings_of(rerun), limits(rerun), of_places.moved(rerun), of_additions.alterations_of(rerun)),
        itertools.chain(behind_operations(rerun), numbers(rerun)),
    )
    switches = (each for each in until_refused(states(rerun)) if isinstance(each, Alteration))
    first = (of_everywhere.alterations_of(rerun), 1), *named(rerun), (switches, 1), (of_tables.alterations_of(rerun), 1)
    every = in_turns(*several)
    return *first, (in_turns(every, every, that_may_be_why(rerun)), 1)


def that_may_be_why(rerun: Rerun) -> Alterations:
    """Where some of jax's numbers are torch's: of the operations on which these do not depend, if they are few."""
    near = narrowed(rerun)
    if len(near.operations) <= FEW * len(rerun.operations):
        yield from in_turns(itertools.chain(kind_by_kind(near), numbers(near)), *of_several(near))


def named(rerun: Rerun) -> tuple[Kind, ...]:
    """Few, and those that everyone has a name for."""
    return (
        (of_masks.alterations_of(rerun), 1),
        (of_turned_norms.alterations_of(rerun), 1),
        (of_head_norms.alterations_of(rerun), 1),
        (of_rotations.alterations_of(rerun), 1),
        (of_other_layers.alterations_of(rerun), 1),
        (of_attention.alterations_of(rerun), 1),
    )


def wiring(rerun: Rerun) -> Alterations:
    """Of what the parts of a layer read."""
    yield from until_refused(of_wiring.alterations_of(rerun))
    yield from of_reads.last_in_sums(rerun.operations)


def states(rerun: Rerun) -> Alterations:
    """Of what modules hold, of constants that are rounded, and of whole numbers that are too large."""
    whole = (of_ids.roundings(rerun.operations), of_overflow.alterations_of(rerun.operations))
    return itertools.chain(of_layers.alterations_of(rerun), *whole)


def numbers(rerun: Rerun) -> Alterations:
    """In the place of those that operations are given."""
    return itertools.chain.from_iterable(map(of_operands.numbers, rerun.operations))


def every(rerun: Rerun) -> Alterations:
    """All of them."""
    for kind, _ in kinds(rerun):
        yield from until_refused(kind)


def until_refused(alterations: Alterations) -> Alterations:
    """All of them, or those before one that cannot be made."""
    try:
        yield from alterations
    except REFUSED:
        return


def in_turns(*several: Alterations) -> Alterations:
    """One of each, again and again."""
    left = [until_refused(each) for each in several]
    while left:
        found = [(each, next(each, None)) for each in left]
        left = [each for each, alteration in found if alteration is not None]
        yield from (alteration for _, alteration in found if alteration is not None)


def in_operations(rerun: Rerun) -> Alterations:
    """Of each operation of its code, kind by kind; of several; and of what one reads."""
    for operation in rerun.operations:
        yield from of_operations.of_kinds(operation, PARTS)
        yield from of_operations.alterations_of(operation)
        yield from of_operations.of_kinds(operation, AXES)
    yield from in_several(rerun)


def in_several(rerun: Rerun) -> Alterations:
    """Of several operations, and of what one reads."""
    return itertools.chain(*of_several(rerun))


def of_several(rerun: Rerun) -> list[Alterations]:
    """The same, kind by kind."""
    readings = of_pairs.alterations_of, of_reads.alterations_of, of_poolings.alterations_of
    kinds = of_layouts.patches(rerun), *(each(rerun.operations) for each in SEVERAL), *(each(rerun) for each in readings)
    return [*map(until_refused, kinds), of_operands.alterations_of(rerun.operations)]


def kind_by_kind(rerun: Rerun) -> Alterations:
    """Of all operations, first what is plain."""
    several = [each for each in rerun.operations if isinstance(each.output, (tuple, list))]
    for operation in several:
        yield from of_operations.of_kinds(operation, (of_operations.outputs,))
    for kind in (
        activations,
        of_operations.small_numbers,
        *PARTS,
        of_operations.without,
        of_operations.exchanged,
        *of_operations.KINDS,
        *AXES,
    ):
        for operation in rerun.operations:
            yield from of_operations.of_kinds(operation, (kind,))


def activations(operation: Operation) -> Alterations:
    """Another activation."""
    return of_operations.others(operation) if of_operations.is_activation(operation) else iter(())


def limits(rerun: Rerun) -> Alterations:
    """Of what activations give."""
    for operation in rerun.operations:
        if of_operations.is_activation(operation):
            yield from of_operations.of_kinds(operation, (of_results.limits,))


def in_runs(rerun: Rerun) -> Alterations:
    """Of each operation of code that is called several times, in one of these calls alone."""
    for operation in rerun.operations:
        for only in range(len(operation.runs)) if 1 < len(operation.runs) <= MOST_RUNS else ():
            yield from of_operations.alterations_of(replace(operation, only=only))


def behind_operations(rerun: Rerun) -> Alterations:
    """Of what each operation gives; a multiple of it comes last."""
    dials: list[Dial] = []
    for operation in rerun.operations:
        for alteration in of_results.alterations_of(operation):
            if isinstance(alteration, Dial):
                dials.append(alteration)
            else:
                yield alteration
    yield from dials
