"""JAX tensors that hold several of torch's, one behind another: one kernel for queries, keys and values, or for gate and up."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations

import numpy as np

from jaxformer.convert.axes import Join, Layout, shares_of
from jaxformer.convert.layouts import find_layout, inside
from jaxformer.parity.capture.module_paths import common_start, last, parent
from jaxformer.parity.match.candidates import Assignment, JaxPiece

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
