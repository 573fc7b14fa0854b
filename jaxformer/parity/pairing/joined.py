"""JAX tensors that hold several of torch's, one behind another, an unequal part of one, or the sum of two."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations

import numpy as np

from jaxformer.convert.axes import Join, Layout, Part, shares_of, sum_of
from jaxformer.convert.layouts import find_layout, fingerprint, inside
from jaxformer.parity.pairing.candidates import Assignment, JaxPiece, TorchPiece
from jaxformer.parity.trace.call_sites import common_start, last, parent

MOST_PARTS = 4
"""The gates of an LSTM."""


def match_joined(known: Assignment) -> None:
    """Note those of equal values. Numbers that are all the same, as fresh biases, lie beside a kernel that is joined: there the
    values may differ."""
    for mine in known.open():
        names = [
            it.name for it in inside(known.array(mine), known.arrays(known.tensors())) if not known.fingerprint(it).constant
        ]
        if 1 < len(names) <= MOST_PARTS:
            _accept(known, mine, permutations(names))
    kernels = {parent(mine.label): other.name for mine, (other, _) in known.pairs.items() if other.name in known.joins}
    for mine in known.open():
        if joined := kernels.get(parent(mine.label)):
            _accept(known, mine, _beside(known, joined))


def _beside(known: Assignment, joined: str) -> Iterator[Sequence[str]]:
    """Free tensors in the modules that a joined kernel's lie in, one of each, of one name."""
    template, join = known.joins[joined]
    modules = [parent(template.replace("{part}", part)) for part in join.names]
    free = {name for name, _ in known.tensors()}
    if len(set(modules)) == len(modules):
        words = {last(name) for name in free if parent(name) == modules[0]}
        yield from (names for word in sorted(words) if free.issuperset(names := [f"{it}.{word}" for it in modules]))


def _accept(known: Assignment, mine: JaxPiece, orders: Iterable[Sequence[str]]) -> None:
    """Note the one order in which they are ours."""
    found = [(order, axis, layout) for order in orders for axis, layout in _fits(known, order, known.array(mine))]
    if len({tuple(order) for order, _, _ in found}) == 1:
        order, axis, layout = found[0]
        template, parts = template_of(order)
        shares = shares_of([known.torch[name].shape[axis] for name in order])
        known.add_joined(mine, (template, Join(parts, axis, shares)), layout)


def _fits(known: Assignment, order: Sequence[str], ours: np.ndarray) -> Iterator[tuple[int, Layout]]:
    """Along which axes of torch's tensors they are joined, and how the whole then becomes ours."""
    arrays = [known.torch[name] for name in order]
    if sum(array.size for array in arrays) != ours.size or {array.dtype for array in arrays} != {ours.dtype}:
        return
    for axis in range(arrays[0].ndim):
        if len({(*array.shape[:axis], 0, *array.shape[axis + 1 :]) for array in arrays}) == 1:
            whole = np.concatenate(arrays, axis)
            layout = find_layout(whole, ours)
            if layout is not None or ours.ndim == 1 == whole.ndim:
                yield axis, layout or "same"


def template_of(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Names as one, with `{part}` for what differs, and what stands there in each."""
    start = common_start(names)
    rest = [name.removeprefix(f"{start}.") for name in names]
    ends = {last(name) if parent(name) else "" for name in rest}
    end = f".{ends.pop()}" if len(ends) == 1 and ends != {""} else ""
    return f"{start}.{{part}}{end}".removeprefix("."), tuple(name.removesuffix(end) for name in rest)


MOST_PARTS = 4


def match_parted(known: Assignment) -> None:
    """Note those of equal values, where one order of them gives torch's tensor."""
    for name, theirs in known.torch.items():
        if is_whole(known, name):
            continue
        free = inside(theirs, known.arrays([*_halves(known, name), *known.open()]))
        parts = [mine for mine in free if not known.fingerprint(mine).constant]
        orders = permutations(parts) if 1 < len(parts) <= MOST_PARTS else ()
        found = [(order, fit) for order in orders for fit in _fits_of_parts(known, order, theirs)]
        if len({order for order, _ in found}) == 1:
            beside = [other for other in known.torch if parent(other) == parent(name) and not is_whole(known, other)]
            for mine in (mine for other in beside for mine in _halves(known, other)):
                known.remove(mine)
            for mine, (part, layout) in zip(*found[0], strict=True):
                known.add(mine, TorchPiece(name, part), layout)


def is_whole(known: Assignment, name: str) -> bool:
    """Whether all parts of torch's tensor are known."""
    return bool(known.used[name]) and all(len(known.used[name]) == part.of for part in known.used[name])


def _halves(known: Assignment, name: str) -> list[JaxPiece]:
    """What was taken for an equal part of torch's tensor, as queries that are half of it."""
    return [mine for mine, (other, _) in known.pairs.items() if other.name == name]


def _fits_of_parts(known: Assignment, order: tuple[JaxPiece, ...], theirs: np.ndarray) -> list[list[tuple[Part, Layout]]]:
    """The parts of torch's tensor, cut along its first or last axis, and how each becomes ours."""
    sizes = [known.array(one).size for one in order]
    if sum(sizes) != theirs.size:
        return []
    found = []
    for axis in sorted({0, theirs.ndim - 1}):
        parts = [Part(number, len(order), axis, shares_of(sizes)) for number in range(len(order))]
        if parts[0].fits(theirs):
            layouts = [find_layout(part.cut(theirs), known.array(one)) for part, one in zip(parts, order, strict=True)]
            whole = [(part, layout) for part, layout in zip(parts, layouts, strict=True) if layout is not None]
            found += [whole] if len(whole) == len(parts) else []
    return found


def match_summed(known: Assignment) -> None:
    """Note sums, whole or in parts, of free tensors that lie beside each other."""
    free = [(it.name, known.array(it)) for it in known.tensors()] if known.open() else []
    beside = [
        (one, other)
        for (one, its), (other, others) in combinations(free, 2)
        if parent(one) == parent(other) and its.shape == others.shape and its.dtype == others.dtype
    ]
    added = {}
    for names in beside:
        template, parts = template_of(names)
        name = template.replace("{part}", "+".join(parts))
        total = sum_of([known.torch[it] for it in names])
        if not fingerprint(total).constant:  # one number everywhere says nothing
            known.torch[name], known.joins[name], added[name] = total, (template, Join(parts, summed=True)), names
    known.resolve()
    match_parted(known)
    for name, names in added.items():
        if is_whole(known, name):
            for it in names:
                known.used[it] |= known.used[name]
        else:
            del known.torch[name], known.joins[name]
