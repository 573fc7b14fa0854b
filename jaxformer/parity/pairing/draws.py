"""Which draw of jax's is which of torch's, in training mode: by kind, shape and module, in the order of both sides."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jaxformer.parity.numerics.axis_order import orders_for, to_jax_axes
from jaxformer.parity.pairing.names import ModuleMap
from jaxformer.parity.report.text import count
from jaxformer.parity.trace.call_sites import below
from jaxformer.parity.trace.draws import DROPOUT, NORMAL, UNIFORM, Draw, numbers_of

SHARED = (DROPOUT, UNIFORM, NORMAL)
SAME_RATE = 1e-6
"""Rates nearer than this are one: jax computes some in float32."""
SAME_MODULE, AROUND, ELSEWHERE = 3.0, 2.0, 0.5
"""How well two draws go together: in paired modules; where one module is around the other; anywhere else."""
OTHER_KIND = 0.4
"""The part of this that is left where one side draws which units are kept, and the other uniform numbers that tell so."""
MOST_READINGS = 16
"""How many ways to read uniform numbers are tried: those of four lines of code."""


@dataclass(frozen=True)
class DrawPairs:
    """Of one run of each side."""

    torch: Sequence[Draw]
    jax: Sequence[Draw]
    pairs: Mapping[int, int] = field(default_factory=dict)
    """The number of jax's draw -> torch's."""
    unseen: Sequence[str] = ()
    """The lines of jax's code that draw what cannot be given torch's numbers."""
    turned: frozenset[int] = frozenset()
    """jax's draws for which torch's uniform numbers `u` are read as `1 - u`; of which units are kept, those that look as if jax
    drew which it drops, and are read as what it keeps, at another rate."""

    def numbers(self) -> list[np.ndarray | None]:
        """torch's, for each of jax's draws, with its axes; None where torch has none."""
        pairs = {j: (self.torch[i], self.jax[j], j in self.turned) for j, i in self.pairs.items()}
        return [fitting(*pairs[j]) if j in pairs else None for j in range(len(self.jax))]

    def readings(self) -> Iterator["DrawPairs"]:
        """The same with each way to read the numbers: code keeps what is below a uniform number, or what is above another; it
        draws what it drops, or keeps as many as torch drops. All draws of one line of code are read in one way."""
        lines = defaultdict(set)
        for j, i in self.pairs.items():
            if UNIFORM in (self.torch[i].kind, self.jax[j].kind) or is_opposite(self.jax[j], self.torch[i]):
                lines[self.torch[i].line, self.jax[j].line].add(j)
        for turned in itertools.islice(itertools.product((False, True), repeat=len(lines)), MOST_READINGS):
            yield replace(self, turned=frozenset().union(*itertools.compress(lines.values(), turned)))

    def left(self) -> tuple[list[int], list[int]]:
        """The numbers of torch's draws and of jax's that are not paired."""
        theirs = [i for i in range(len(self.torch)) if i not in self.pairs.values()]
        return theirs, [j for j in range(len(self.jax)) if j not in self.pairs]

    def untied(self) -> str:
        """What both sides draw without the other's numbers, one of them in a way that cannot be tied; '' where it can be told
        what one side alone draws."""
        theirs, ours = ([side[k] for k in left] for side, left in zip((self.torch, self.jax), self.left(), strict=True))
        free = [each for each in theirs if each.kind not in SHARED]
        if not (theirs and self.unseen) and not (free and ours):
            return ""
        lines = [f"at {line}" for line in self.unseen] or [each.says for each in ours]
        says = f"torch draws {(free or theirs)[0].says}, jax draws {lines[0]}, and neither can be given the other's numbers"
        return f"{says}: draw them outside and give them to both models as inputs, or compare with mode='eval'"

    def differences(self) -> list[tuple[str, str, str]]:
        """(side, path, what is said) of each draw that one side alone has, and of rates that differ."""
        found = []
        theirs, ours = ([], []) if self.untied() else self.left()
        for i, each in enumerate(self.torch):
            if i in theirs:
                shares = [other for j, other in enumerate(self.jax) if j not in self.pairs and in_groups(other, each)]
                less = f"jax drops whole axes of it together, {list(shares[0].shape)}" if shares else "jax has none there"
                found.append(("torch", each.path, f"torch has {each.says} of {list(each.shape)}; {less}"))
        for j, each in enumerate(self.jax):
            if j in ours and not any(in_groups(each, other) for other in self.torch):
                found.append(("jax", each.path, f"jax has {each.says} of {list(each.shape)}; torch has none there"))
            elif j in self.pairs and self._other_rate(each, other := self.torch[self.pairs[j]], j in self.turned):
                found.append(("jax", each.path, f"torch has {other.says}; jax {each.says}"))
        return found

    @staticmethod
    def _other_rate(mine: Draw, other: Draw, turned: bool) -> bool:
        """Whether the two keep units at rates that differ."""
        return mine.kind == other.kind and (not same_rate(mine, other) or (turned and is_opposite(mine, other)))

    def says(self) -> str:
        """How many there are."""
        return f"{count(len(self.pairs), 'draw')} at the same places, with torch's numbers on both sides"


def pair_draws(
    torch: Sequence[Draw], jax: Sequence[Draw], parameters: Mapping[str, str], unseen: Sequence[str] = ()
) -> DrawPairs:
    """In order first, then what is left in any order. `parameters`: names of jax's -> torch's, by which modules are paired."""
    modules = ModuleMap(parameters)
    scores = np.array([[score(mine, other, modules) for other in torch] for mine in jax]).reshape(len(jax), len(torch))
    pairs = dict(in_order(scores))
    for j in range(len(jax)):
        free = [i for i in range(len(torch)) if i not in pairs.values() and scores[j, i] > 0]
        if j not in pairs and free:
            pairs[j] = max(free, key=lambda i: scores[j, i])
    return DrawPairs(torch, jax, pairs, unseen)


def score(mine: Draw, other: Draw, modules: ModuleMap) -> float:
    """How well two draws go together; 0 if not at all."""
    same_kind = mine.kind == other.kind and mine.kind in SHARED
    if not (same_kind or {mine.kind, other.kind} == {DROPOUT, UNIFORM}) or not orders_for(other.shape, mine.shape):
        return 0.0
    around = modules.of(f"{mine.path}.(draw)")
    same = around == other.path or around == other.path.rpartition(".")[0]
    beside = below(other.path, around) or below(around, other.path)
    place = SAME_MODULE if same else AROUND if beside else ELSEWHERE
    return place + 0.4 * same_rate(mine, other) if same_kind else OTHER_KIND * place


def same_rate(mine: Draw, other: Draw) -> bool:
    """Whether both keep as many; or drop as many as the other keeps, as code does that draws what it drops."""
    return abs(mine.keep - other.keep) < SAME_RATE or is_opposite(mine, other)


def is_opposite(mine: Draw, other: Draw) -> bool:
    """Whether jax may draw which units it drops."""
    both, apart = mine.kind == other.kind == DROPOUT, abs(mine.keep - other.keep) >= SAME_RATE
    return both and apart and abs(1 - mine.keep - other.keep) < SAME_RATE


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


def fitting(torch: Draw, jax: Draw, turned: bool) -> np.ndarray:
    """torch's numbers with jax's axes. What torch keeps is below its own uniform numbers, which jax may draw, and the other way
    round."""
    uniform = UNIFORM in (torch.kind, jax.kind)
    numbers = numbers_of(replace(torch, kind=UNIFORM) if uniform else torch)
    numbers = to_jax_axes(1 - numbers if turned and uniform else numbers, orders_for(torch.shape, jax.shape)[0], jax.shape)
    if uniform:
        return numbers < jax.keep if jax.kind == DROPOUT else numbers
    return ~numbers if is_opposite(jax, torch) and not turned else numbers


def in_groups(mine: Draw, other: Draw) -> bool:
    """Whether jax draws one number where torch draws several, along whole axes."""
    both = zip(mine.shape, other.shape, strict=False)
    same_rank = mine.kind == other.kind and len(mine.shape) == len(other.shape) and mine.shape != other.shape
    return same_rank and all(m in (1, n) for m, n in both)
