"""Which draw of jax's is which of torch's, in training mode: by kind, shape and module, in the order of both sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxformer.parity.capture.draws import DROPOUT, NORMAL, UNIFORM, Draw, numbers_of
from jaxformer.parity.capture.module_paths import below
from jaxformer.parity.match.names import ModuleMap
from jaxformer.parity.numerics.axis_order import orders_for, to_jax_axes
from jaxformer.parity.report.format import count

SHARED = (DROPOUT, UNIFORM, NORMAL)
SAME_RATE = 1e-6
"""Rates nearer than this are one: jax computes some in float32."""
SAME_MODULE, AROUND, ELSEWHERE = 3.0, 2.0, 0.5
"""How well two draws go together: in paired modules; where one module is around the other; anywhere else."""


@dataclass(frozen=True)
class DrawPairs:
    """Of one run of each side."""

    torch: Sequence[Draw]
    jax: Sequence[Draw]
    pairs: Mapping[int, int] = field(default_factory=dict)
    """The number of jax's draw -> torch's."""

    def numbers(self) -> list[np.ndarray | None]:
        """torch's, for each of jax's draws, with its axes; None where torch has none."""
        return [fitting(self.torch[self.pairs[j]], each) if j in self.pairs else None for j, each in enumerate(self.jax)]

    def differences(self) -> list[tuple[str, str, str]]:
        """(side, path, what is said) of each draw that one side alone has, and of rates that differ."""
        found = []
        for i, each in enumerate(self.torch):
            if i not in self.pairs.values():
                shares = [other for j, other in enumerate(self.jax) if j not in self.pairs and in_groups(other, each)]
                less = f"jax drops whole axes of it together, {list(shares[0].shape)}" if shares else "jax has none there"
                found.append(("torch", each.path, f"torch has {each.says} of {list(each.shape)}; {less}"))
        for j, each in enumerate(self.jax):
            if j not in self.pairs and not any(in_groups(each, other) for other in self.torch):
                found.append(("jax", each.path, f"jax has {each.says} of {list(each.shape)}; torch has none there"))
            elif j in self.pairs and not same_rate(each, other := self.torch[self.pairs[j]]):
                found.append(("jax", each.path, f"torch has {other.says}; jax {each.says}"))
        return found

    def says(self) -> str:
        """How many there are."""
        return f"{count(len(self.pairs), 'draw')} at the same places, with torch's numbers on both sides"


def pair_draws(torch: Sequence[Draw], jax: Sequence[Draw], parameters: Mapping[str, str]) -> DrawPairs:
    """In order first, then what is left in any order. `parameters`: names of jax's -> torch's, by which modules are paired."""
    modules = ModuleMap(parameters)
    scores = np.array([[score(mine, other, modules) for other in torch] for mine in jax]).reshape(len(jax), len(torch))
    pairs = dict(in_order(scores))
    for j in range(len(jax)):
        free = [i for i in range(len(torch)) if i not in pairs.values() and scores[j, i] > 0]
        if j not in pairs and free:
            pairs[j] = max(free, key=lambda i: scores[j, i])
    return DrawPairs(torch, jax, pairs)


def score(mine: Draw, other: Draw, modules: ModuleMap) -> float:
    """How well two draws go together; 0 if not at all."""
    if mine.kind != other.kind or mine.kind not in SHARED or not orders_for(other.shape, mine.shape):
        return 0.0
    around = modules.of(f"{mine.path}.(draw)")
    same = around == other.path or around == other.path.rpartition(".")[0]
    beside = below(other.path, around) or below(around, other.path)
    return (SAME_MODULE if same else AROUND if beside else ELSEWHERE) + 0.4 * same_rate(mine, other)


def same_rate(mine: Draw, other: Draw) -> bool:
    """Whether both keep as many; or drop as many as the other keeps, as code does that draws what it drops."""
    return abs(mine.keep - other.keep) < SAME_RATE or is_opposite(mine, other)


def is_opposite(mine: Draw, other: Draw) -> bool:
    """Whether jax draws which units it drops."""
    return abs(1 - mine.keep - other.keep) < SAME_RATE and abs(mine.keep - other.keep) >= SAME_RATE


def in_order(scores: np.ndarray) -> list[tuple[int, int]]:
    """The pairs of the best alignment: rows and columns both ascend."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for j in range(rows):
        for i in range(columns):
            best[j + 1, i + 1] = max(best[j, i + 1], best[j + 1, i], best[j, i] + scores[j, i])
    pairs, j, i = [], rows, columns
    while j and i:
        if best[j, i] == best[j - 1, i]:
            j -= 1
        elif best[j, i] == best[j, i - 1]:
            i -= 1
        else:
            j, i = j - 1, i - 1
            pairs.append((j, i))
    return pairs[::-1]


def fitting(torch: Draw, jax: Draw) -> np.ndarray:
    """torch's numbers with jax's axes."""
    numbers = to_jax_axes(numbers_of(torch), orders_for(torch.shape, jax.shape)[0], jax.shape)
    return ~numbers if torch.kind == DROPOUT and is_opposite(jax, torch) else numbers


def in_groups(mine: Draw, other: Draw) -> bool:
    """Whether jax draws one number where torch draws several, along whole axes."""
    both = zip(mine.shape, other.shape, strict=False)
    same_rank = mine.kind == other.kind and len(mine.shape) == len(other.shape) and mine.shape != other.shape
    return same_rank and all(m in (1, n) for m, n in both)
