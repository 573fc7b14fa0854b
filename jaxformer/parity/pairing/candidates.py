"""Matching of JAX tensors with torch tensors by the values that both sides hold.

The JAX tree holds torch's weights, converted by the author's own code. Axes may be in any order, split or merged; an axis may
stack layers; a tensor may be a part of one that packs several. Pairs of bitwise equal tensors are ranked, the surest first:

    a rule             the pair is given at the start
    alone              only one tensor of each side has these values
    beside             the JAX tensor lies in the module where torch's neighbours are, as far as these are known
    gradient           of vectors that hold one number, as fresh norms and biases, the only two with one gradient
    named              each name is the nearest to the other
    order of axes      one of these, where several orders of axes give the same values: names tell it
    shape and name     the values differ: see `placement`

`resolve` accepts those of the surest rank that has any, again and again. Tensors that stay open are listed, not guessed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from jaxformer.convert.host import same_bits
from jaxformer.convert.layouts import Fingerprint, find_layout, fingerprint, of_shape
from jaxformer.convert.rules import WHOLE, Join, Layout, Part, Rule
from jaxformer.parity.pairing.gradients import Gradients, of_one_gradient
from jaxformer.parity.pairing.names import ModuleMap, nearest_pairs
from jaxformer.parity.pairing.pieces import JaxPiece, TorchPiece, laid_out, sizes_beside
from jaxformer.parity.pairing.rules import parts_of, torch_names
from jaxformer.parity.trace.call_sites import ancestors, below, last, parent

PACKED = (3, 2)
"""Numbers of equal parts that a torch tensor may pack: queries, keys and values, or keys and values."""


Piece = TypeVar("Piece", JaxPiece, TorchPiece)
Pair = tuple[JaxPiece, TorchPiece]
Kind = tuple[str, str, int]
Group = tuple[Fingerprint, list[JaxPiece], list[TorchPiece]]


@dataclass
class Assignment:
    """Pairs of JAX and torch tensors that are known so far; tensors of either side may be added later."""

    torch: dict[str, np.ndarray]
    jax: dict[str, np.ndarray]
    pairs: dict[JaxPiece, tuple[TorchPiece, Layout]] = field(default_factory=dict)
    used: dict[str, set[Part]] = field(default_factory=lambda: defaultdict(set))
    """Parts of each torch tensor that have a partner, by torch name."""
    fingerprints: dict[JaxPiece | TorchPiece, Fingerprint] = field(default_factory=dict)
    joins: dict[str, tuple[str, Join]] = field(default_factory=dict)
    """Join of each tensor that several torch tensors make up: its name -> the torch name in its rule, and the join."""
    gradients: Gradients | None = None

    def resolve(self) -> None:
        """Accept candidates of equal values, the surest rank first, until none is left."""
        ranks = (self._alone, self._beside, self._of_one_gradient, self._named)
        while any(sum(self.accept(*pair, by_name=named) for pair in rank()) for named in (False, True) for rank in ranks):
            pass

    def _alone(self) -> Iterator[Pair]:
        """Yield pairs whose values one tensor of each side has: whole tensors first, then layers, then parts."""
        for jax in (self._wholes, self._layers):
            for torch in (self.tensors, self._packed):
                for _, mine, others in self._groups(jax(), torch()):
                    if len(mine) == len(others) == 1:
                        yield mine[0], others[0]

    def _beside(self) -> Iterator[Pair]:
        """Yield pairs among several of equal values: torch's tensor is the only one in a module of which another tensor is
        already paired with one of the JAX module's."""
        beside: dict[str, set[tuple[str, tuple[int, int]]]] = defaultdict(set)
        for mine, (other, _) in self.pairs.items():
            beside[parent(mine.label)].add((parent(other.name), other.part[:2]))
        for _, ours, theirs in list(self._groups(self.open(), [*self.tensors(), *self._packed()])):
            near = {one: [it for it in theirs if (parent(it.name), it.part[:2]) in beside[parent(one.label)]] for one in ours}
            claims = Counter(found[0] for found in near.values() if len(found) == 1)
            yield from ((mine, found[0]) for mine, found in near.items() if len(found) == 1 == claims[found[0]])

    def _of_one_gradient(self) -> Iterator[Pair]:
        """Yield pairs among several vectors of one constant number: those whose gradients are equal, and no other's."""
        for known, ours, theirs in list(self._groups(self.open(), self.tensors())):
            if self.gradients and known.constant and len(ours) > 1 and all(self.array(it).ndim == 1 for it in theirs):
                yield from of_one_gradient(self.gradients, ours, theirs)

    def _named(self) -> Iterator[Pair]:
        """Yield pairs of one name, then those with the nearest names; constant tensors only if both sides have equally many
        free ones of a shape."""
        modules, groups = self.modules(), list(self._groups(self.open(), self.tensors()))
        for _, ours, theirs in groups:
            other = {one.name: one for one in theirs}
            of_one_name = ((mine, other.get(mine.name.removeprefix("params."))) for mine in ours if mine.layer is None)
            yield from ((mine, found) for mine, found in of_one_name if found and self._is_beside_its_own(found.name))
        for known, ours, theirs in groups:
            for mine, other in self._of_one_kind(ours, theirs) if known.constant else [(ours, theirs)]:
                by_label, by_name = ({one.label: one for one in mine}, {one.name: one for one in other})
                pairs = nearest_pairs(list(by_label), list(by_name), modules)
                yield from ((by_label[a], by_name[b]) for a, b in pairs if not known.constant or len(mine) == len(other))

    def _is_beside_its_own(self, name: str) -> bool:
        """True if no tensor around it is paired, or one is with a tensor of torch's module of that path."""
        for path in filter(None, ancestors(name)):
            theirs = [other.name for mine, (other, _) in self.pairs.items() if below(mine.name.removeprefix("params."), path)]
            if theirs:
                return any(below(it, path) for it in theirs)
        return True

    def _of_one_kind(self, ours: list[JaxPiece], theirs: list[TorchPiece]) -> Iterator[tuple[list[JaxPiece], list[TorchPiece]]]:
        """Split tensors of one constant number by shape, and by the sizes of the tensors beside them if both sides then have
        equally many of each: these tell the gain of a layer norm from that of an RMS norm."""
        for shape in {self.array(one).shape for one in ours}:
            mine = [one for one in ours if self.array(one).shape == shape]
            other = [it for it in theirs if self.array(it).shape == shape]
            kinds: dict[tuple[int, ...], tuple[list[JaxPiece], list[TorchPiece]]] = defaultdict(lambda: ([], []))
            for one in mine:
                layers = 1 if one.layer is None else len(self.jax[one.name])
                kinds[sizes_beside(one.name, self.jax, layers)][0].append(one)
            for it in other:
                kinds[sizes_beside(it.name, self.torch)][1].append(it)
            yield from kinds.values() if all(len(a) == len(b) for a, b in kinds.values()) else [(mine, other)]

    def accept(self, mine: JaxPiece, other: TorchPiece, *, by_name: bool = False) -> bool:
        """Note a pair if exactly one layout fits and torch's tensor is not already cut in another way; return True if noted.

        With `by_name`, names may tell the layout of values that fit in several, as zeros and symmetric matrices do. A leading
        axis of size 1 that torch does not have is a stack of one layer, and is paired as a layer.
        """
        taken, shape = self.used[other.name], self.array(mine).shape
        if mine.layer is None and shape[:1] == (1,) and len(shape) == self.array(other).ndim + 1:
            return False
        layout = find_layout(self.array(other), self.array(mine))
        layout = self._layout_by_name(mine, other) if layout is None and by_name else layout
        if layout is None or other.part in taken or any(part[1:] != other.part[1:] for part in taken):
            return False
        self.add(mine, other, layout)
        return True

    def _layout_by_name(self, mine: JaxPiece, other: TorchPiece) -> Layout | None:
        """Return the layout that most tensors of these names have, else 'same' for tensors of one name, or if all tensors have
        it; None if it does not give jax's values."""
        kinds = self.layouts_by_kind()
        usual: list[Layout] = [layout for layout, _ in kinds[self.kind(mine, other)].most_common(1)]
        every = {layout for (*_, axes), layouts in kinds.items() for layout in layouts if axes > 1}
        usual += ["same"] if last(mine.name) == last(other.name) or every == {"same"} else []
        ours, theirs = self.array(mine), self.array(other)
        held = {layout: laid_out(theirs, layout) for layout in (of_shape(each, theirs.shape) for each in usual)}
        return next((each for each, it in held.items() if it is not None and same_bits(it, ours)), None)

    def kind(self, mine: JaxPiece, other: TorchPiece) -> Kind:
        """Last names of two tensors, and the number of jax's axes."""
        return last(mine.label), last(other.name), self.array(mine).ndim

    def layouts_by_kind(self) -> dict[Kind, Counter[Layout]]:
        """Count the layouts of paired tensors by their last names, such as kernel and weight."""
        found: dict[Kind, Counter[Layout]] = defaultdict(Counter)
        for mine, (other, layout) in self.pairs.items():
            found[self.kind(mine, other)][layout] += 1
        return found

    def add(self, mine: JaxPiece, other: TorchPiece, layout: Layout) -> None:
        """Note a pair without checking it."""
        self.pairs[mine] = other, layout
        self.used[other.name].add(other.part)

    def add_joined(self, mine: JaxPiece, joined: tuple[str, Join], layout: Layout) -> None:
        """Note a JAX tensor that joins several torch tensors; their concatenation is added to torch's tensors."""
        template, join = joined
        names, name = parts_of(*joined), template.replace("{part}", "+".join(join.names))
        self.torch[name], self.joins[name] = np.concatenate([self.torch[it] for it in names], join.axis), joined
        self.add(mine, TorchPiece(name), layout)
        for it in names:
            self.used[it].add(WHOLE)

    def remove(self, mine: JaxPiece) -> None:
        """Remove a pair."""
        other, _ = self.pairs.pop(mine)
        self.used[other.name].discard(other.part)

    def _groups(self, jax: Iterable[JaxPiece], torch: Iterable[TorchPiece]) -> Iterator[Group]:
        """Yield the candidates: pieces of both sides that hold the same values."""
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
        """Values of a piece."""
        if isinstance(one, JaxPiece):
            return self.jax[one.name] if one.layer is None else np.asarray(self.jax[one.name][one.layer])
        return one.part.cut(self.torch[one.name])

    def arrays(self, pieces: Iterable[Piece]) -> dict[Piece, np.ndarray]:
        """Values of each piece."""
        return {one: self.array(one) for one in pieces}

    def fingerprint(self, one: JaxPiece | TorchPiece) -> Fingerprint:
        """Fingerprint of a piece, computed once."""
        if one not in self.fingerprints:
            self.fingerprints[one] = fingerprint(self.array(one))
        return self.fingerprints[one]

    def _wholes(self) -> list[JaxPiece]:
        """JAX tensors without a partner."""
        taken = {mine.name for mine in self.pairs}
        return [JaxPiece(name) for name in self.jax if name not in taken]

    def _layers(self) -> list[JaxPiece]:
        """Layers of the JAX tensors without a partner."""
        free = [(whole.name, self.jax[whole.name]) for whole in self._wholes()]
        return [JaxPiece(name, layer) for name, array in free if array.ndim for layer in range(len(array))]

    def open(self) -> list[JaxPiece]:
        """JAX tensors without a partner.

        They are listed layer by layer if tensors of the modules around them are paired by layers, as many as they have.
        """
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
        """torch's tensors without a partner."""
        return [TorchPiece(name) for name in self.torch if not self.used[name]]

    def _packed(self) -> list[TorchPiece]:
        """Parts of torch's tensors without a partner.

        They are cut along the first axis, as torch packs them, or the last, as GPT-2 does. Unequal shares are those of a paired
        tensor in the same module.
        """
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
        """Module map of the pairs known so far."""
        return ModuleMap({mine.label: other.name for mine, (other, _) in self.pairs.items()})

    def rules(self) -> dict[str, Rule]:
        """Return the rules of JAX tensors of which every layer is known, if every part of their torch tensors is known too."""
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
