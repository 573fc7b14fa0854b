"""Parameters that one side alone has: what the other side does without them is what it would do with zero, one or identity."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from jaxformer.parity.probe.parameters import kind_of
from jaxformer.parity.report.summarize import say_names

Side = Literal["torch", "jax"]


@dataclass(frozen=True)
class OneSided:
    """One of them."""

    side: Side
    """Which has it."""
    name: str
    """There."""
    value: np.ndarray
    idle: bool = False
    """Whether nothing that is compared depends on it."""
    JAX: ClassVar[str] = "jax "

    @property
    def key(self) -> str:
        """Its name among torch's: of JAX's, one that torch cannot have."""
        return self.name if self.side == "torch" else f"{self.JAX}{self.name}"

    @property
    def neutral(self) -> str:
        """What it would have to be to change nothing: '0', '1' or 'the identity'. A vector whose name says nothing is what it
        is next to."""
        kind = kind_of(self.name, self.value.ndim)
        if kind == "matrix":
            return "the identity" if self.value.ndim == 2 and len(set(self.value.shape)) == 1 else "0"
        plain = self.value.ndim < 2 and "bias" not in self.name.rpartition(".")[2]
        nearer = plain and np.abs(self.value - 1).max(initial=0.0) < np.abs(self.value).max(initial=0.0)
        return "1" if kind == "gain" or nearer else "0"

    @property
    def gap(self) -> np.ndarray:
        """How far it is from that."""
        plain = {"0": 0.0, "1": 1.0}
        return self.value - (plain[self.neutral] if self.neutral in plain else np.eye(len(self.value), dtype=self.value.dtype))

    @property
    def is_neutral(self) -> bool:
        """Whether it changes nothing."""
        return self.idle or not self.gap.any()

    def says(self, name: str | None = None) -> str:
        """In words, of one or, by another name, of all layers."""
        who = f"jax leaves out {name or self.name}" if self.side == "torch" else f"jax has {name or self.name}, torch has not"
        if self.idle:
            return f"{who}: nothing that is compared depends on it"
        if self.is_neutral:
            return f"{who}: it is {self.neutral}, so it changes nothing"
        return f"{who}: it is not {self.neutral} (rms {np.sqrt(np.mean(np.square(self.gap))):.1e} off)"


def one_sided(side: Side, names: Iterable[str], values: Mapping[str, np.ndarray]) -> list[OneSided]:
    """Those of one side."""
    return [OneSided(side, name, np.asarray(values[name])) for name in names]


def may_be_pairs(left: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray], known: int) -> bool:
    """Whether what is left of both sides may be the same tensors, unconverted or of another shape: some are of one size or of
    one kind, or they are most of the model, of which `known` tensors are known."""

    def sizes(arrays: Mapping[str, np.ndarray]) -> set[int]:
        return {array.size for array in arrays.values()}

    def kinds(arrays: Mapping[str, np.ndarray]) -> set[str]:
        return {"matrix" if array.ndim > 1 else kind_of(name, 1) for name, array in arrays.items()}

    return bool(sizes(left) & sizes(free) or kinds(left) & kinds(free)) or len(left) + len(free) > known


def told(found: Sequence[OneSided], every: Mapping[Side, Sequence[str]]) -> list[str]:
    """Each in words, layers together; `every` has all names of each side."""
    groups: dict[tuple[Side, str, bool], list[OneSided]] = {}
    for each in found:
        groups.setdefault((each.side, "" if each.idle else each.neutral, each.is_neutral), []).append(each)
    said = []
    for (side, _, _), alike in groups.items():
        names = say_names([each.name for each in alike], every[side])
        largest = max(alike, key=lambda each: float(np.abs(each.gap).max(initial=0.0)))
        said.append(largest.says(", ".join(names)))
    return said
