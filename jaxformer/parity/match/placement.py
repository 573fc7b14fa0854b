"""A tensor whose values were not, or wrongly, converted: which one it should be, told by where it lies.

Most of a model's tensors are known by then. What their places say of the rest is taken only where it leaves no doubt.
"""

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from jaxformer.convert.layouts import of_shape
from jaxformer.convert.rules import Layout, Part, Rule
from jaxformer.parity.capture.module_paths import last, parent
from jaxformer.parity.match.buffers import alone
from jaxformer.parity.match.candidates import Ours, Search, Theirs
from jaxformer.parity.match.names import blank, nearest_pairs, twins

Kind = tuple[str, str, int]
WAYS: tuple[Layout, ...] = ("same", "transposed")


def straighten(search: Search) -> None:
    """One that lies otherwise than the same tensor of other layers was turned on its way: a square one shows no other sign."""
    layers: dict[tuple[str, Theirs], list[Ours]] = {}
    for mine, (other, _) in search.found.items():
        layers.setdefault((blank(mine.label), _layered(other)), []).append(mine)
    kinds = _kinds(search)
    for group in layers.values():
        votes: Counter[Layout] = Counter(search.found[mine][1] for mine in group)
        if len(votes) > 1:
            wanted = _most(votes) or _most(kinds[_kind(search, group[0], search.found[group[0]][0])])
            for mine in group:
                other, layout = search.found[mine]
                if wanted is not None and layout != wanted and _fits(search, mine, other, wanted):
                    search.found[mine] = other, wanted


def place(search: Search, no_weights: Container[str]) -> None:
    """Pairs of what is left, but for what is no weight on its side, if most of the model is known."""
    slots = {one.label: one for one in search.open() if one.name not in no_weights}
    if len(slots) > len(search.found):
        return
    free = [other for other in (*search.tensors(), *_parts(search)) if other.name not in no_weights]
    theirs = {other.name if other.part.of == 1 else f"{other.name}.{other.part.number}": other for other in free}
    kinds, fits = _kinds(search), {}
    known = {(blank(mine.label), blank(other.name), other.part) for mine, (other, _) in search.found.items()}
    for label, mine in slots.items():
        for key, other in theirs.items():
            if (layout := _layout(search, mine, other, kinds)) is not None:
                fits[label, key] = layout
        layered = {key for key, it in theirs.items() if (blank(label), blank(it.name), it.part) in known}
        if any((label, key) in fits for key in layered):
            fits = {pair: layout for pair, layout in fits.items() if pair[0] != label or pair[1] in layered}
    for label, key in nearest_pairs(list(slots), list(theirs), search.homes(), fits):
        mine, other = slots[label], theirs[key]
        layered = (blank(label), blank(other.name), other.part) in known
        if layered or alone((label, key), fits) or _plain(label, other.name):
            search.found[mine] = other, fits[label, key]
            search.used[other.name].add(other.part)


def crossed(search: Search) -> list[str]:
    """Tensors of which names, or most of the other layers, say plainly that they are not the same, in words."""
    beside: dict[tuple[str, str], list[tuple[Ours, Theirs]]] = {}
    layers: dict[str, Counter[Theirs]] = {}
    for mine, (other, _) in search.found.items():
        layers.setdefault(blank(mine.label), Counter())[_layered(other)] += 1
        if other.part.of > 1 or not _plain(mine.label, other.name):
            beside.setdefault((parent(parent(mine.label)), last(mine.label)), []).append((mine, other))
    usual = {mine: _most(layers[blank(mine.label)]) for pairs in beside.values() for mine, _ in pairs}
    odd = {mine for pairs in beside.values() for mine, other in pairs if usual[mine] not in (None, _layered(other))}
    return [
        f"{mine.label} holds what torch has in {other.name}{f' (part {other.part.number})' if other.part.of > 1 else ''}"
        for pairs in beside.values()
        for mine, other in pairs
        if (mine in odd and any(one in odd and usual[mine] == _layered(it) for one, it in pairs))
        or (_elsewhere(mine, other, [it for _, it in pairs]) and any(_plain(one.label, other.name) for one, _ in pairs))
    ]


def _layered(other: Theirs) -> Theirs:
    """The same in each layer."""
    return other._replace(name=blank(other.name))


def _elsewhere(mine: Ours, other: Theirs, among: list[Theirs]) -> bool:
    """Whether the name of another tensor beside torch's is plainly the one."""
    return any(_plain(mine.label, it.name) and parent(parent(it.name)) == parent(parent(other.name)) for it in among)


def _plain(ours: str, theirs: str) -> bool:
    """Whether the modules around two tensors go by the same name; the number of a layer is none."""
    one, other = last(parent(ours)), last(parent(theirs))
    return twins(one, other) and not one.isdigit()


def _parts(search: Search) -> Iterator[Theirs]:
    """The parts that are free of tensors of which others are known."""
    for name, taken in list(search.used.items()):
        for _, of, axis in list(taken)[:1]:
            cut = of > 1 and search.torch[name].shape[axis] % of == 0
            yield from (
                Theirs(name, part) for part in (Part(i, of, axis) for i in range(of if cut else 0)) if part not in taken
            )


def _kind(search: Search, mine: Ours, other: Theirs) -> Kind:
    return last(mine.label), last(other.name), search.array(mine).ndim


def _kinds(search: Search) -> dict[Kind, Counter[Layout]]:
    """How tensors of the same last names lie: a kernel, and a weight."""
    found: dict[Kind, Counter[Layout]] = {}
    for mine, (other, layout) in search.found.items():
        found.setdefault(_kind(search, mine, other), Counter())[layout] += 1
    return found


def _most(votes: Counter[Any]) -> Any:
    """What more than half of them say, or None."""
    layout, count = votes.most_common(1)[0]
    return layout if 2 * count > votes.total() else None


def _layout(search: Search, mine: Ours, other: Theirs, kinds: dict[Kind, Counter[Layout]]) -> Layout | None:
    """How torch's tensor would lie in ours: as others of its names do, or else as only one way fits; None if it cannot."""
    theirs = search.array(other)
    same: list[Layout] = [
        layout
        for one, (it, layout) in search.found.items()
        if (blank(one.label) == blank(mine.label) and blank(it.name) == blank(other.name)) or it.name == other.name
    ]
    votes: Counter[Layout] = kinds.get(_kind(search, mine, other), Counter())
    for known in (same[:1], list(votes)):
        for layout in known:
            if _fits(search, mine, other, way := of_shape(layout, theirs.shape)):
                return way
    ways: list[Layout] = [way for way in WAYS if _fits(search, mine, other, way)]
    return ways[0] if len(ways) == 1 or (theirs.ndim < 2 and ways) else None


def _fits(search: Search, mine: Ours, other: Theirs, layout: Layout) -> bool:
    try:
        return Rule("", "", layout).to_jax(search.array(other)).shape == search.array(mine).shape
    except ValueError:
        return False
