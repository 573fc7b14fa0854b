"""Which JAX tensor is which torch tensor, found from the values that both sides hold.

The JAX tree holds torch's weights, converted by whatever code its author has. Axes may be in any order, split or merged; a
leading axis may stack layers; a JAX tensor may be a part of one that torch packs. Every pair of values that are equal bit for
bit is a candidate. What supports a candidate has a rank, the surest first:

    a rule             it is given at the start
    alone              one tensor of each side has these values
    beside             it lies in the module where torch's neighbours are, as far as these are known
    named              its name is the nearest one on both sides
    shape and name     the values differ: see `placement`

`resolve` accepts the candidates of the surest rank that has any, and starts again, until no rank has one. What stays open is
listed, not guessed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxformer.convert.layouts import Fingerprint, find_layout, fingerprint
from jaxformer.convert.rules import WHOLE, Family, Join, Layout, Part, Rule
from jaxformer.parity.pairing.names import ModuleMap, nearest_pairs, stack_start
from jaxformer.parity.trace.call_sites import ancestors, parent

PACKED = (3, 2)
"""Into how many equal parts a torch tensor may be cut: queries, keys and values, or keys and values."""


class JaxPiece(NamedTuple):
    """A JAX tensor, or one layer of it."""

    name: str
    layer: int | None = None

    @property
    def label(self) -> str:
        """A name of its own for each layer, so that each layer is a tree of modules."""
        return self.name if self.layer is None else f"{self.layer}.{self.name}"


class TorchPiece(NamedTuple):
    """A torch tensor, or a part of it."""

    name: str
    part: Part = WHOLE


Piece = TypeVar("Piece", JaxPiece, TorchPiece)
Pair = tuple[JaxPiece, TorchPiece]
Group = tuple[Fingerprint, list[JaxPiece], list[TorchPiece]]


def on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """As numpy arrays."""
    return {name: np.asarray(array) for name, array in arrays.items()}


@dataclass
class Assignment:
    """The pairs that are known so far, among tensors of both sides; more of both may be added later."""

    torch: dict[str, np.ndarray]
    jax: dict[str, np.ndarray]
    pairs: dict[JaxPiece, tuple[TorchPiece, Layout]] = field(default_factory=dict)
    used: dict[str, set[Part]] = field(default_factory=lambda: defaultdict(set))
    """torch's tensors -> the parts of them that have a partner."""
    fingerprints: dict[JaxPiece | TorchPiece, Fingerprint] = field(default_factory=dict)
    joins: dict[str, tuple[str, Join]] = field(default_factory=dict)
    """Names of what is joined of torch's tensors -> the torch name of its rule, and how."""

    def resolve(self) -> None:
        """Accept candidates of equal values, the surest rank first, to a fixed point."""
        while any(sum(self.accept(*pair) for pair in rank()) for rank in (self._alone, self._beside, self._named)):
            pass

    def _alone(self) -> Iterator[Pair]:
        """Where one of each side has these values: whole tensors, then layers, then parts."""
        for jax in (self._wholes, self._layers):
            for torch in (self.tensors, self._packed):
                for _, mine, others in self._groups(jax(), torch()):
                    if len(mine) == len(others) == 1:
                        yield mine[0], others[0]

    def _beside(self) -> Iterator[Pair]:
        """In a module of which other tensors are known: the one of these values that lies beside torch's."""
        beside: dict[str, set[tuple[str, tuple[int, int]]]] = defaultdict(set)
        for mine, (other, _) in self.pairs.items():
            beside[parent(mine.label)].add((parent(other.name), other.part[:2]))
        for _, ours, theirs in list(self._groups(self.open(), [*self.tensors(), *self._packed()])):
            near = {one: [it for it in theirs if (parent(it.name), it.part[:2]) in beside[parent(one.label)]] for one in ours}
            claims = Counter(found[0] for found in near.values() if len(found) == 1)
            yield from ((mine, found[0]) for mine, found in near.items() if len(found) == 1 == claims[found[0]])

    def _named(self) -> Iterator[Pair]:
        """The nearest names; of constants only where as many of a shape are free on both sides."""
        modules = self.modules()
        for known, ours, theirs in list(self._groups(self.open(), self.tensors())):
            for shape in {self.array(one).shape for one in ours} if known.constant else {None}:
                mine = {one.label: one for one in ours if shape in (None, self.array(one).shape)}
                other = {one.name: one for one in theirs if shape in (None, self.array(one).shape)}
                if not known.constant or len(mine) == len(other):
                    yield from ((mine[a], other[b]) for a, b in nearest_pairs(list(mine), list(other), modules))

    def accept(self, mine: JaxPiece, other: TorchPiece) -> bool:
        """Note a pair, if one layout fits and torch's tensor is not used in another way. A leading axis of 1 that torch does
        not have is a stack of one layer, and comes with the layers."""
        taken, shape = self.used[other.name], self.array(mine).shape
        if mine.layer is None and shape[:1] == (1,) and len(shape) == self.array(other).ndim + 1:
            return False
        layout = find_layout(self.array(other), self.array(mine))
        if layout is None or other.part in taken or any(part[1:] != other.part[1:] for part in taken):
            return False
        self.add(mine, other, layout)
        return True

    def add(self, mine: JaxPiece, other: TorchPiece, layout: Layout) -> None:
        """Note a pair that is sure."""
        self.pairs[mine] = other, layout
        self.used[other.name].add(other.part)

    def add_joined(self, mine: JaxPiece, joined: tuple[str, Join], layout: Layout) -> None:
        """Note one of which torch has several tensors: what they are together becomes one of torch's."""
        template, join = joined
        names, name = parts_of(*joined), template.replace("{part}", "+".join(join.names))
        self.torch[name], self.joins[name] = np.concatenate([self.torch[it] for it in names], join.axis), joined
        self.add(mine, TorchPiece(name), layout)
        for it in names:
            self.used[it].add(WHOLE)

    def remove(self, mine: JaxPiece) -> None:
        """Forget a pair."""
        other, _ = self.pairs.pop(mine)
        self.used[other.name].discard(other.part)

    def _groups(self, jax: Iterable[JaxPiece], torch: Iterable[TorchPiece]) -> Iterator[Group]:
        """The candidates: pieces of the same values on both sides."""
        both: dict[Fingerprint, tuple[list[JaxPiece], list[TorchPiece]]] = defaultdict(lambda: ([], []))
        sizes = {self.array(one).size for one in torch}
        for one in jax:
            if self.array(one).size in sizes:
                both[self.fingerprint(one)][0].append(one)
        wanted = {known.size for known in both}
        for other in torch:
            if self.array(other).size in wanted:
                both[self.fingerprint(other)][1].append(other)
        yield from ((known, *sides) for known, sides in both.items() if all(sides))

    def array(self, one: JaxPiece | TorchPiece) -> np.ndarray:
        """Its numbers."""
        if isinstance(one, JaxPiece):
            return self.jax[one.name] if one.layer is None else np.asarray(self.jax[one.name][one.layer])
        return one.part.cut(self.torch[one.name])

    def arrays(self, pieces: Iterable[Piece]) -> dict[Piece, np.ndarray]:
        """The numbers of each."""
        return {one: self.array(one) for one in pieces}

    def fingerprint(self, one: JaxPiece | TorchPiece) -> Fingerprint:
        """Computed once."""
        if one not in self.fingerprints:
            self.fingerprints[one] = fingerprint(self.array(one))
        return self.fingerprints[one]

    def _wholes(self) -> list[JaxPiece]:
        """JAX tensors that are free."""
        taken = {mine.name for mine in self.pairs}
        return [JaxPiece(name) for name in self.jax if name not in taken]

    def _layers(self) -> list[JaxPiece]:
        """The layers of those."""
        free = [(whole.name, self.jax[whole.name]) for whole in self._wholes()]
        return [JaxPiece(name, layer) for name, array in free if array.ndim for layer in range(len(array))]

    def open(self) -> list[JaxPiece]:
        """JAX tensors that are free, or their layers, where the tensors around them have some, and layers left over."""
        layers: dict[str, set[int | None]] = defaultdict(set)
        for name, layer in self.pairs:
            for path in (name, *ancestors(name)):
                layers[path].add(None if layer is None else len(self.jax[name]))
        pieces = []
        for name, array in self.jax.items():
            around = next((layers[path] for path in (name, *ancestors(name)) if path in layers), {None})
            stacked = array.ndim and around == {len(array)}
            pieces += [JaxPiece(name, layer) for layer in range(len(array))] if stacked else [JaxPiece(name)]
        return [one for one in pieces if one not in self.pairs]

    def tensors(self) -> list[TorchPiece]:
        """torch's tensors that are free."""
        return [TorchPiece(name) for name in self.torch if not self.used[name]]

    def _packed(self) -> list[TorchPiece]:
        """The parts of those, along the first axis, as torch packs them, or the last, as GPT-2 does; of unequal shares, as a
        neighbour has them."""
        unequal = {parent(name): part.shares for name, taken in self.used.items() for part in taken if part.shares}
        pieces = []
        for name, _ in self.tensors():
            array, shares = self.torch[name], unequal.get(parent(name), ())
            for axis in sorted({0, array.ndim - 1} if array.size and array.ndim else ()):
                cuts = [(of, ()) for of in PACKED] + [(len(shares), shares)] * bool(shares)
                parts = (Part(number, of, axis, each) for of, each in cuts for number in range(of))
                pieces += [TorchPiece(name, part) for part in parts if part.fits(array)]
        return pieces

    def modules(self) -> ModuleMap:
        """As far as pairs are known."""
        return ModuleMap({mine.label: other.name for mine, (other, _) in self.pairs.items()})

    def rules(self) -> dict[str, Rule]:
        """Of the JAX tensors of which every layer is known, and in torch tensors of which every part is."""
        rules: dict[str, Rule] = {}
        for name in dict.fromkeys(mine.name for mine in self.pairs):
            whole = JaxPiece(name) in self.pairs
            pieces = [JaxPiece(name)] if whole else [JaxPiece(name, layer) for layer in range(len(self.jax[name]))]
            found = [self.pairs[piece] for piece in pieces if piece in self.pairs]
            joined = [self.joins.get(other.name, (other.name, None)) for other, _ in found]
            kinds = {(layout, other.part, join) for (other, layout), (_, join) in zip(found, joined, strict=True)}
            if len(found) == len(pieces) and len(kinds) == 1:
                names = tuple(torch_name for torch_name, _ in joined)
                rules[name] = Rule(name, names[0] if whole else names, *kinds.pop())
        parts = Counter(torch_name for rule in rules.values() for torch_name in torch_names(rule))
        return {name: rule for name, rule in rules.items() if all(parts[it] == rule.part.of for it in torch_names(rule))}


def by_layer(rule: Rule) -> tuple[str, ...]:
    """The torch name of each layer."""
    return (rule.torch,) if isinstance(rule.torch, str) else rule.torch


def torch_names(rule: Rule) -> tuple[str, ...]:
    """Of every layer, and of all that is joined in it."""
    return tuple(name for layer in by_layer(rule) for name in parts_of(layer, rule.join))


def parts_of(name: str, join: Join | None) -> tuple[str, ...]:
    """A torch name, or those that are joined."""
    return tuple(name.replace("{part}", part) for part in join.names) if join else (name,)


def as_family(rules: Mapping[str, Rule]) -> Family:
    """Rules by JAX names as one family. A stack of one tensor starts as the tensor is called: other names may start so too."""
    stacked = {name: rule.torch for name, rule in rules.items() if not isinstance(rule.torch, str)}
    others = rules.keys() - stacked.keys()
    starts = dict.fromkeys((stack_start(name, stacked, others) for name in stacked), "{layer}.")
    starts |= {name: "" for name in others if name.startswith(tuple(starts))}
    return Family("matched by values", starts, tuple(rules[name] for name in sorted(rules, key=len, reverse=True)))
