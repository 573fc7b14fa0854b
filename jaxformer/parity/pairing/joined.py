"""JAX tensors that concatenate several torch tensors, that are an unequal part of one, or that sum two."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations

import numpy as np

from jaxformer.convert.axes import Join, Layout, Part, shares_of, sum_of
from jaxformer.convert.layouts import find_layout, fingerprint, inside
from jaxformer.parity.pairing.candidates import Assignment
from jaxformer.parity.pairing.pieces import JaxPiece, TorchPiece
from jaxformer.parity.trace.call_sites import common_start, last, parent

MOST_PARTS = 4
"""Largest number of tensors in a join, such as the gates of an LSTM, or of parts of one tensor."""


def match_joined(known: Assignment) -> None:
    """Note JAX tensors that concatenate torch tensors of equal values.

    Tensors of one constant number, such as fresh biases, are joined as the kernel in their module is; their values may differ.
    """
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
    """Yield free tensors of one name, one from each module that holds a part of a joined kernel."""
    template, join = known.joins[joined]
    modules = [parent(template.replace("{part}", part)) for part in join.names]
    free = {name for name, _ in known.tensors()}
    if len(set(modules)) == len(modules):
        words = {last(name) for name in free if parent(name) == modules[0]}
        yield from (names for word in sorted(words) if free.issuperset(names := [f"{it}.{word}" for it in modules]))


def _accept(known: Assignment, mine: JaxPiece, orders: Iterable[Sequence[str]]) -> None:
    """Note the join if exactly one order of the torch tensors gives jax's tensor."""
    found = [(order, axis, layout) for order in orders for axis, layout in _fits(known, order, known.array(mine))]
    if len({tuple(order) for order, _, _ in found}) == 1:
        order, axis, layout = found[0]
        template, parts = template_of(order)
        shares = shares_of([known.torch[name].shape[axis] for name in order])
        known.add_joined(mine, (template, Join(parts, axis, shares)), layout)


def _fits(known: Assignment, order: Sequence[str], jax: np.ndarray) -> Iterator[tuple[int, Layout]]:
    """Yield each axis along which the torch tensors can be joined, and the layout that turns the whole into jax's tensor."""
    arrays = [known.torch[name] for name in order]
    if sum(array.size for array in arrays) != jax.size or {array.dtype for array in arrays} != {jax.dtype}:
        return
    for axis in range(arrays[0].ndim):
        if len({(*array.shape[:axis], 0, *array.shape[axis + 1 :]) for array in arrays}) == 1:
            whole = np.concatenate(arrays, axis)
            layout = find_layout(whole, jax)
            if layout is not None or jax.ndim == 1 == whole.ndim:
                yield axis, layout or "same"


def template_of(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Merge names into one template with `{part}` where they differ, and return the part of each name."""
    start = common_start(names)
    rest = [name.removeprefix(f"{start}.") for name in names]
    ends = {last(name) if parent(name) else "" for name in rest}
    end = f".{ends.pop()}" if len(ends) == 1 and ends != {""} else ""
    return f"{start}.{{part}}{end}".removeprefix("."), tuple(name.removesuffix(end) for name in rest)


def match_parted(known: Assignment) -> None:
    """Note JAX tensors that are parts of one torch tensor, if exactly one order of them gives its values."""
    for name, torch in known.torch.items():
        if is_whole(known, name):
            continue
        free = inside(torch, known.arrays([*_halves(known, name), *known.open()]))
        parts = [mine for mine in free if not known.fingerprint(mine).constant]
        orders = permutations(parts) if 1 < len(parts) <= MOST_PARTS else ()
        found = [(order, fit) for order in orders for fit in _fits_of_parts(known, order, torch)]
        if len({order for order, _ in found}) == 1:
            beside = [other for other in known.torch if parent(other) == parent(name) and not is_whole(known, other)]
            for mine in (mine for other in beside for mine in _halves(known, other)):
                known.remove(mine)
            for mine, (part, layout) in zip(*found[0], strict=True):
                known.add(mine, TorchPiece(name, part), layout)


def is_whole(known: Assignment, name: str) -> bool:
    """True if all parts of torch's tensor are paired."""
    return bool(known.used[name]) and all(len(known.used[name]) == part.of for part in known.used[name])


def _halves(known: Assignment, name: str) -> list[JaxPiece]:
    """JAX tensors paired with equal parts of torch's tensor, such as queries that make up half of it."""
    return [mine for mine, (other, _) in known.pairs.items() if other.name == name]


def _fits_of_parts(known: Assignment, order: tuple[JaxPiece, ...], torch: np.ndarray) -> list[list[tuple[Part, Layout]]]:
    """List the ways to cut torch's tensor along its first or last axis into jax's tensors: each part with its layout."""
    sizes = [known.array(one).size for one in order]
    if sum(sizes) != torch.size:
        return []
    found = []
    for axis in sorted({0, torch.ndim - 1}):
        parts = [Part(number, len(order), axis, shares_of(sizes)) for number in range(len(order))]
        if parts[0].fits(torch):
            layouts = [find_layout(part.cut(torch), known.array(one)) for part, one in zip(parts, order, strict=True)]
            whole = [(part, layout) for part, layout in zip(parts, layouts, strict=True) if layout is not None]
            found += [whole] if len(whole) == len(parts) else []
    return found


def match_summed(known: Assignment) -> None:
    """Note JAX tensors that are sums, whole or in parts, of two free torch tensors of one module."""
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
        if not fingerprint(total).constant:  # constant values are no evidence
            known.torch[name], known.joins[name], added[name] = total, (template, Join(parts, summed=True)), names
    known.resolve()
    match_parted(known)
    for name, names in added.items():
        if is_whole(known, name):
            for it in names:
                known.used[it] |= known.used[name]
        else:
            del known.torch[name], known.joins[name]
