"""Rules that nobody has to write: which tensor is which, found by the values that both sides hold.

The JAX tree already holds torch's weights, converted by whatever code its author has. Tensors of which the values tell are
matched by them alone. What the values leave open, constants and tied weights, is resolved by names, where these are plain:
in the module whose other tensors are known, or by the nearest name on both sides. What stays open is listed, not guessed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.layouts import Fingerprint, find_layout, fingerprint
from jaxformer.convert.rules import WHOLE, Family, Layout, Part, Rule
from jaxformer.parity.capture.module_paths import ancestors, parent
from jaxformer.parity.match.names import Homes, nearest_names, nearest_pairs, stack_start
from jaxformer.pytree import named_weights

PACKED = (3, 2)
"""Into how many equal parts a torch tensor is cut in search of ours: queries, keys and values, or keys and values."""


@dataclass(frozen=True)
class Matching:
    """Which tensor is which; `family` serves wherever rules do, once nothing is left unmatched."""

    family: Family
    unmatched_jax: Mapping[str, tuple[str, ...]]
    """Names of JAX tensors that are none of torch's -> the nearest torch names that are free."""
    unmatched_torch: Mapping[str, tuple[str, ...]]
    """The other way round."""

    def __str__(self) -> str:
        lines = [f"{len(self.family.rules)} JAX tensors matched"]
        for side, left in (("JAX", self.unmatched_jax), ("torch", self.unmatched_torch)):
            for name, near in left.items():
                lines.append(f"{side} {name} is unmatched" + (f"; nearest: {', '.join(near)}" if near else ""))
        return "\n".join(lines)


class Ours(NamedTuple):
    """A JAX tensor, or one layer of it."""

    name: str
    layer: int | None = None

    @property
    def label(self) -> str:
        """A name of its own for each layer, so that each is a tree of modules."""
        return self.name if self.layer is None else f"{self.layer}.{self.name}"


class Theirs(NamedTuple):
    """A torch tensor, or a part of it."""

    name: str
    part: Part = WHOLE


def match(torch_weights: Mapping[str, np.ndarray], jax_tree: PyTree) -> Matching:
    """The rules between torch's weights and a JAX tree that holds them: an NNX module or nested dicts, of any names.

    Axes may be in any order, split or merged; a leading axis may stack layers; a JAX tensor may be a part of one that torch
    packs. Values have to be the same bit for bit. Give torch random values before you convert (`excite`): fresh biases and
    gains, all 0 or 1, leave only their names to go by, and torch's `TransformerEncoder` begins with all layers the same.
    """
    leaves = named_weights(jax_tree)
    search = Search(on_host(torch_weights), on_host(leaves))
    search.by_values()
    search.by_names()
    return matching(search.rules(), list(leaves), list(torch_weights))


def on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """As numpy has them."""
    return {name: np.asarray(array) for name, array in arrays.items()}


@dataclass
class Search:
    """What is known so far, of torch's tensors and of ours; there may be more of both later."""

    torch: dict[str, np.ndarray]
    jax: dict[str, np.ndarray]
    found: dict[Ours, tuple[Theirs, Layout]] = field(default_factory=dict)
    used: dict[str, set[Part]] = field(default_factory=lambda: defaultdict(set))
    """Of torch's tensors."""
    known: dict[Ours | Theirs, Fingerprint] = field(default_factory=dict)

    def wholes(self) -> list[Ours]:
        """JAX tensors that are free."""
        taken = {ours.name for ours in self.found}
        return [Ours(name) for name in self.jax if name not in taken]

    def layers(self) -> list[Ours]:
        """The layers of those."""
        free = [(ours.name, self.jax[ours.name]) for ours in self.wholes()]
        return [Ours(name, layer) for name, array in free if array.ndim for layer in range(len(array))]

    def tensors(self) -> list[Theirs]:
        """torch's tensors that are free."""
        return [Theirs(name) for name in self.torch if not self.used[name]]

    def parts(self) -> list[Theirs]:
        """The parts of those, along the first axis, as torch packs them, or the last, as GPT-2 does."""
        shapes = {name: self.torch[name].shape for name, _ in self.tensors()}
        return [
            Theirs(name, Part(number, of, axis))
            for name, shape in shapes.items()
            for axis in sorted({0, len(shape) - 1} if shape else ())
            for of in PACKED
            if shape[axis] and shape[axis] % of == 0
            for number in range(of)
        ]

    def array(self, one: Ours | Theirs) -> np.ndarray:
        """Its numbers."""
        if isinstance(one, Ours):
            return self.jax[one.name] if one.layer is None else np.asarray(self.jax[one.name][one.layer])
        return one.part.cut(self.torch[one.name])

    def print_of(self, one: Ours | Theirs) -> Fingerprint:
        """Computed once."""
        if one not in self.known:
            self.known[one] = fingerprint(self.array(one))
        return self.known[one]

    def groups(self, ours: Iterable[Ours], theirs: Iterable[Theirs]) -> Iterator[tuple[Fingerprint, list[Ours], list[Theirs]]]:
        """Those of the same numbers on both sides."""
        both: dict[Fingerprint, tuple[list[Ours], list[Theirs]]] = defaultdict(lambda: ([], []))
        sizes = {self.array(one).size for one in theirs}
        for one in ours:
            if self.array(one).size in sizes:
                both[self.print_of(one)][0].append(one)
        wanted = {known.size for known in both}
        for other in theirs:
            if self.array(other).size in wanted:
                both[self.print_of(other)][1].append(other)
        yield from ((known, *sides) for known, sides in both.items() if all(sides))

    def by_values(self) -> None:
        """Where one of each side has these numbers, or one that lies beside torch's."""
        for ours in (self.wholes, self.layers):
            for theirs in (self.tensors, self.parts):
                for _, mine, others in self.groups(ours(), theirs()):
                    if len(mine) == len(others) == 1:
                        self.accept(mine[0], others[0])
        self.by_siblings()

    def accept(self, mine: Ours, other: Theirs) -> bool:
        """Note a pair, if one layout fits and torch's tensor is not used in another way. A leading axis of 1 that torch has
        not is a stack of one layer, and comes with the layers."""
        taken, shape = self.used[other.name], self.array(mine).shape
        if mine.layer is None and shape[:1] == (1,) and len(shape) == self.array(other).ndim + 1:
            return False
        layout = find_layout(self.array(other), self.array(mine))
        if layout is None or other.part in taken or any(part[1:] != other.part[1:] for part in taken):
            return False
        self.found[mine] = other, layout
        taken.add(other.part)
        return True

    def open(self) -> list[Ours]:
        """JAX tensors that are free, or their layers, where the tensors around them have some, and layers left over."""
        layers: dict[str, set[int | None]] = defaultdict(set)
        for name, layer in self.found:
            for path in (name, *ancestors(name)):
                layers[path].add(None if layer is None else len(self.jax[name]))
        slots = []
        for name, array in self.jax.items():
            around = next((layers[path] for path in (name, *ancestors(name)) if path in layers), {None})
            stacked = array.ndim and around == {len(array)}
            slots += [Ours(name, layer) for layer in range(len(array))] if stacked else [Ours(name)]
        return [one for one in slots if one not in self.found]

    def by_siblings(self) -> None:
        """What is left in a module of which other tensors are known: the one of these numbers that lies beside torch's."""
        beside: dict[str, set[tuple[str, tuple[int, int]]]] = defaultdict(set)
        for mine, (other, _) in self.found.items():
            beside[parent(mine.label)].add((parent(other.name), other.part[:2]))
        for _, ours, theirs in list(self.groups(self.open(), [*self.tensors(), *self.parts()])):
            near = {one: [it for it in theirs if (parent(it.name), it.part[:2]) in beside[parent(one.label)]] for one in ours}
            claims = [found[0] for found in near.values() if len(found) == 1]
            for mine, found in near.items():
                if len(found) == 1 and claims.count(found[0]) == 1:
                    self.accept(mine, found[0])

    def homes(self) -> Homes:
        """As far as is known."""
        return Homes({mine.label: other.name for mine, (other, _) in self.found.items()})

    def by_names(self) -> None:
        """What is left: the nearest names; of constants only where as many of a shape are free on both sides."""
        homes = self.homes()
        for known, ours, theirs in list(self.groups(self.open(), self.tensors())):
            for shape in {self.array(one).shape for one in ours} if known.constant else {None}:
                mine = {one.label: one for one in ours if shape in (None, self.array(one).shape)}
                other = {one.name: one for one in theirs if shape in (None, self.array(one).shape)}
                if not known.constant or len(mine) == len(other):
                    for label, name in nearest_pairs(list(mine), list(other), homes):
                        self.accept(mine[label], other[name])

    def rules(self) -> dict[str, Rule]:
        """Of the JAX tensors of which every layer is known, and in torch tensors of which every part is."""
        rules: dict[str, Rule] = {}
        for name in dict.fromkeys(ours.name for ours in self.found):
            whole = Ours(name) in self.found
            slots = [Ours(name)] if whole else [Ours(name, layer) for layer in range(len(self.jax[name]))]
            found = [self.found[slot] for slot in slots if slot in self.found]
            if len(found) == len(slots) and len({(layout, other.part) for other, layout in found}) == 1:
                (other, layout), names = found[0], tuple(other.name for other, _ in found)
                rules[name] = Rule(name, other.name if whole else names, layout, other.part)
        held = Counter(torch_name for rule in rules.values() for torch_name in torch_names(rule))
        return {name: rule for name, rule in rules.items() if all(held[it] == rule.part.of for it in torch_names(rule))}


def torch_names(rule: Rule) -> tuple[str, ...]:
    """Of every layer."""
    return (rule.torch,) if isinstance(rule.torch, str) else rule.torch


def matching(rules: Mapping[str, Rule], jax_names: list[str], torch_weights: list[str]) -> Matching:
    """The rules as a family, and what they leave out."""
    stacked = {name: rule.torch for name, rule in rules.items() if not isinstance(rule.torch, str)}
    starts = dict.fromkeys((stack_start(name, stacked, set(rules) - set(stacked)) for name in stacked), "{layer}.")
    longest_first = tuple(rules[name] for name in sorted(rules, key=len, reverse=True))
    used = {torch_name for rule in rules.values() for torch_name in torch_names(rule)}
    ours, theirs = [name for name in jax_names if name not in rules], [name for name in torch_weights if name not in used]
    return Matching(
        Family("matched by values", starts, longest_first),
        {name: nearest_names(name, theirs) for name in ours},
        {name: nearest_names(name, ours) for name in theirs},
    )
