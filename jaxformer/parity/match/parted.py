"""JAX tensors that are the unequal parts of one of torch's: queries, and fewer heads of keys and values, that torch packs."""

from itertools import permutations

import numpy as np

from jaxformer.convert.axes import Layout, Part, shares_of
from jaxformer.convert.layouts import find_layout, inside
from jaxformer.parity.capture.module_paths import parent
from jaxformer.parity.match.candidates import Assignment, JaxPiece, TorchPiece

MOST_PARTS = 4


def match_parted(known: Assignment) -> None:
    """Note those of equal values, where one order of them gives torch's tensor."""
    for name, theirs in known.torch.items():
        if is_whole(known, name):
            continue
        free = inside(theirs, known.arrays([*_halves(known, name), *known.open()]))
        parts = [mine for mine in free if not known.fingerprint(mine).constant]
        orders = permutations(parts) if 1 < len(parts) <= MOST_PARTS else ()
        found = [(order, fit) for order in orders for fit in _fits(known, order, theirs)]
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


def _fits(known: Assignment, order: tuple[JaxPiece, ...], theirs: np.ndarray) -> list[list[tuple[Part, Layout]]]:
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
