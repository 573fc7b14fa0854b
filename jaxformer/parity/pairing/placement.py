"""Pairing of tensors with unconverted or wrongly converted values, by shape, name and order; and parameters of one side
only."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from jaxformer.convert.layouts import of_shape
from jaxformer.convert.rules import Layout, Part
from jaxformer.parity.pairing.candidates import Assignment, Kind
from jaxformer.parity.pairing.names import blank, nearest_pairs, only_pair, same_word
from jaxformer.parity.pairing.pieces import JaxPiece, TorchPiece, laid_out
from jaxformer.parity.probe import kind_of
from jaxformer.parity.report.summarize import say_names
from jaxformer.parity.trace.call_sites import last, parent

LAYOUTS: tuple[Layout, ...] = ("same", "transposed")


def correct_layouts(known: Assignment) -> None:
    """Correct the layout of tensors that have another layout than the same tensor of other layers.

    Such a tensor was transposed by mistake; a square one shows this in no other way.
    """
    layers: dict[tuple[str, TorchPiece], list[JaxPiece]] = {}
    for mine, (other, _) in known.pairs.items():
        layers.setdefault((blank(mine.label), _any_layer(other)), []).append(mine)
    kinds = known.layouts_by_kind()
    for group in layers.values():
        votes: Counter[Layout] = Counter(known.pairs[mine][1] for mine in group)
        if len(votes) > 1:
            wanted = _majority(votes) or _majority(kinds[known.kind(group[0], known.pairs[group[0]][0])])
            for mine in group:
                other, layout = known.pairs[mine]
                if wanted is not None and layout != wanted and _fits(known, mine, other, wanted):
                    known.pairs[mine] = other, wanted


def pair_by_path(known: Assignment, no_weights: Container[str]) -> None:
    """Pair the remaining weights that have one path and shape on both sides, whole or layer by layer: those of a model that was
    trained further, drawn again, or rounded."""
    free, kinds = {other.name: other for other in known.tensors() if other.name not in no_weights}, known.layouts_by_kind()
    for whole in (one for one in known.open() if one.layer is None and one.name not in no_weights):
        array = known.array(whole)
        for names in _of_one_path(whole.name.removeprefix("params."), len(array) if array.ndim else 0):
            pieces = [whole] if len(names) == 1 else [JaxPiece(whole.name, layer) for layer in range(len(names))]
            both = [(mine, free[name]) for mine, name in zip(pieces, names, strict=True) if name in free]
            if len(both) == len(names) and all(known.array(mine).shape == known.array(it).shape for mine, it in both):
                for mine, other in both:
                    known.add(mine, other, _layout(known, mine, other, kinds) or "same")
                break


def _of_one_path(name: str, layers: int) -> Iterator[list[str]]:
    """Yield the names that a tensor may have on the other side: its own, and those of its layers by the place of the number."""
    yield [name]
    parts = name.split(".")
    for at in range(1, len(parts)):
        yield [".".join([*parts[:at], str(layer), *parts[at:]]) for layer in range(layers)]


def pair_by_place(known: Assignment, no_weights: Container[str]) -> None:
    """Pair the remaining weights of both sides, if most of the model is known."""
    jax = {one.label: one for one in known.open() if one.name not in no_weights}
    if len(jax) > len(known.pairs):
        return
    free = [other for other in (*known.tensors(), *_parts_left(known)) if other.name not in no_weights]
    torch = {other.name if other.part.of == 1 else f"{other.name}.{other.part.number}": other for other in free}
    kinds, layouts = known.layouts_by_kind(), {}
    layers = {(blank(mine.label), blank(other.name), other.part) for mine, (other, _) in known.pairs.items()}
    for label, mine in jax.items():
        fits = {key: it for key, other in torch.items() if (it := _layout(known, mine, other, kinds)) is not None}
        other_layers = [key for key in fits if (blank(label), blank(torch[key].name), torch[key].part) in layers]
        layouts |= {(label, key): fits[key] for key in other_layers or fits}
    for label, key in nearest_pairs(list(jax), list(torch), known.modules(), layouts):
        mine, other = jax[label], torch[key]
        same_in_other_layers = (blank(label), blank(other.name), other.part) in layers
        if same_in_other_layers or only_pair((label, key), layouts) or _same_module(label, other.name):
            known.add(mine, other, layouts[label, key])


def swapped(known: Assignment) -> list[str]:
    """Describe tensors that are paired against their names, or against most of the other layers."""
    beside: dict[tuple[str, str], list[tuple[JaxPiece, TorchPiece]]] = {}
    layers: dict[str, Counter[TorchPiece]] = {}
    for mine, (other, _) in known.pairs.items():
        layers.setdefault(blank(mine.label), Counter())[_any_layer(other)] += 1
        if other.part.of > 1 or not _same_module(mine.label, other.name):
            beside.setdefault((parent(parent(mine.label)), last(mine.label)), []).append((mine, other))
    usual = {mine: _majority(layers[blank(mine.label)]) for pairs in beside.values() for mine, _ in pairs}
    odd = {mine for pairs in beside.values() for mine, other in pairs if usual[mine] not in (None, _any_layer(other))}
    return [
        f"{mine.label} holds what torch has in {other.name}{f' (part {other.part.number})' if other.part.of > 1 else ''}"
        for pairs in beside.values()
        for mine, other in pairs
        if (mine in odd and any(one in odd and usual[mine] == _any_layer(it) for one, it in pairs))
        or (_elsewhere(mine, other, [it for _, it in pairs]) and any(_same_module(one.label, other.name) for one, _ in pairs))
    ]


def _any_layer(other: TorchPiece) -> TorchPiece:
    """Piece without its layer's number: the same in every layer."""
    return other._replace(name=blank(other.name))


def _elsewhere(mine: JaxPiece, other: TorchPiece, among: list[TorchPiece]) -> bool:
    """True if the name of another tensor beside torch's plainly matches."""
    uncle = parent(parent(other.name))
    return any(_same_module(mine.label, it.name) and parent(parent(it.name)) == uncle for it in among)


def _same_module(jax: str, torch: str) -> bool:
    """True if the modules around two tensors have the same name; a layer's number is not a name."""
    one, other = last(parent(jax)), last(parent(torch))
    return same_word(one, other) and not one.isdigit()


def _parts_left(known: Assignment) -> Iterator[TorchPiece]:
    """Yield the unpaired parts of tensors of which other parts are paired."""
    for name, taken in list(known.used.items()):
        for one in list(taken)[:1]:
            every = (Part(number, *one[1:]) for number in range(one.of))
            yield from (TorchPiece(name, it) for it in every if one.of > 1 and one.fits(known.torch[name]) and it not in taken)


def _majority(votes: Counter[Any]) -> Any:
    """Value that more than half of the votes have, or None."""
    layout, count = votes.most_common(1)[0]
    return layout if 2 * count > votes.total() else None


def _layout(known: Assignment, mine: JaxPiece, other: TorchPiece, kinds: dict[Kind, Counter[Layout]]) -> Layout | None:
    """Layout from torch's tensor to jax's: that of other tensors of these names, else the only one that fits, else None."""
    torch, names = known.array(other), (blank(mine.label), blank(other.name))
    same: list[Layout] = [
        layout
        for one, (it, layout) in known.pairs.items()
        if (blank(one.label), blank(it.name)) == names or it.name == other.name
    ]
    votes: Counter[Layout] = kinds[known.kind(mine, other)]
    for layout in (*same[:1], *votes):
        if _fits(known, mine, other, shaped := of_shape(layout, torch.shape)):
            return shaped
    fitting: list[Layout] = [layout for layout in LAYOUTS if _fits(known, mine, other, layout)]
    return fitting[0] if len(fitting) == 1 or (torch.ndim < 2 and fitting) else None


def _fits(known: Assignment, mine: JaxPiece, other: TorchPiece, layout: Layout) -> bool:
    array = laid_out(known.array(other), layout)
    return array is not None and array.shape == known.array(mine).shape


Side = Literal["torch", "jax"]


@dataclass(frozen=True)
class OneSided:
    """A parameter that only one side has."""

    side: Side
    """Side that has the parameter."""
    name: str
    """Name of the parameter on that side."""
    value: np.ndarray
    idle: bool = False
    """True if nothing that is compared depends on the parameter."""
    JAX: ClassVar[str] = "jax "

    @property
    def key(self) -> str:
        """Name among torch's names; jax's parameters get one that torch cannot have."""
        return self.name if self.side == "torch" else f"{self.JAX}{self.name}"

    @property
    def neutral(self) -> str:
        """Value at which the parameter changes nothing: '0', '1' or 'the identity'.

        For a vector whose name does not tell, the nearer of 0 and 1.
        """
        kind = kind_of(self.name, self.value.ndim)
        if kind == "matrix":
            return "the identity" if self.value.ndim == 2 and len(set(self.value.shape)) == 1 else "0"
        plain = self.value.ndim < 2 and "bias" not in self.name.rpartition(".")[2]
        nearer = plain and np.abs(self.value - 1).max(initial=0.0) < np.abs(self.value).max(initial=0.0)
        return "1" if kind == "gain" or nearer else "0"

    @property
    def gap(self) -> np.ndarray:
        """Difference from the neutral value."""
        plain = {"0": 0.0, "1": 1.0}
        return self.value - (plain[self.neutral] if self.neutral in plain else np.eye(len(self.value), dtype=self.value.dtype))

    @property
    def is_neutral(self) -> bool:
        """True if the parameter changes nothing."""
        return self.idle or not self.gap.any()

    def says(self, name: str | None = None) -> str:
        """Describe the parameter; `name` stands for it, if given, for example for all layers."""
        who = f"jax leaves out {name or self.name}" if self.side == "torch" else f"jax has {name or self.name}, torch has not"
        if self.idle:
            return f"{who}: nothing that is compared depends on it"
        if self.is_neutral:
            return f"{who}: it is {self.neutral}, so it changes nothing"
        return f"{who}: it is not {self.neutral} (rms {np.sqrt(np.mean(np.square(self.gap))):.1e} off)"


def one_sided(side: Side, names: Iterable[str], values: Mapping[str, np.ndarray]) -> list[OneSided]:
    """List these parameters of one side."""
    return [OneSided(side, name, np.asarray(values[name])) for name in names]


def may_be_pairs(left: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray], known: int) -> bool:
    """True if the remaining tensors of both sides may be the same ones, unconverted or in another shape.

    So it is if some have the same size or kind, or if they outnumber the `known` tensors.
    """

    def sizes(arrays: Mapping[str, np.ndarray]) -> set[int]:
        return {array.size for array in arrays.values()}

    def kinds(arrays: Mapping[str, np.ndarray]) -> set[str]:
        return {"matrix" if array.ndim > 1 else kind_of(name, 1) for name, array in arrays.items()}

    return bool(sizes(left) & sizes(free) or kinds(left) & kinds(free)) or len(left) + len(free) > known


def told(found: Sequence[OneSided], every: Mapping[Side, Sequence[str]]) -> list[str]:
    """Describe each parameter, layers together; `every` has all names of each side."""
    groups: dict[tuple[Side, str, bool], list[OneSided]] = {}
    for each in found:
        groups.setdefault((each.side, "" if each.idle else each.neutral, each.is_neutral), []).append(each)
    said = []
    for (side, _, _), alike in groups.items():
        names = say_names([each.name for each in alike], every[side])
        largest = max(alike, key=lambda each: float(np.abs(each.gap).max(initial=0.0)))
        said.append(largest.says(", ".join(names)))
    return said
