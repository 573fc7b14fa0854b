"""Pairing of jax's random draws with torch's in training mode: by kind, shape and module, in the order of both sides."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jaxformer.parity.numerics.axis_order import Order, orders_for, to_jax_axes
from jaxformer.parity.pairing.names import ModuleMap
from jaxformer.parity.report.text import count
from jaxformer.parity.trace.call_sites import below
from jaxformer.parity.trace.draws import DROPOUT, NORMAL, UNIFORM, Draw, numbers_of

SHARED = (DROPOUT, UNIFORM, NORMAL)
SAME_RATE = 1e-6
"""Rates closer than this are equal: jax computes some rates in float32."""
SAME_MODULE, AROUND, ELSEWHERE = 3.0, 2.0, 0.5
"""Scores of two draws: in paired modules; in a module around the other's; anywhere else."""
OTHER_KIND = 0.4
"""Factor on the score if one side draws a dropout mask and the other the uniform numbers that decide it."""
MOST_READINGS = 24
"""Largest number of readings of torch's numbers that are tried."""


@dataclass(frozen=True)
class DrawPairs:
    """Draws of one run of each side, and their pairs."""

    torch: Sequence[Draw]
    jax: Sequence[Draw]
    pairs: Mapping[int, int] = field(default_factory=dict)
    """Index of jax's draw -> index of torch's."""
    unseen: Sequence[str] = ()
    """Lines of jax's code whose draws cannot be given torch's numbers."""
    turned: frozenset[int] = frozenset()
    """jax's draws for which torch's uniform numbers `u` are read as `1 - u`. Dropout masks in this set look as if jax drew the
    units to drop, but are read as the units to keep, at another rate than torch's."""
    orders: Mapping[int, Order] = field(default_factory=dict)
    """jax's draws -> the order of torch's axes in them, where it is not the first that fits."""

    def numbers(self) -> list[np.ndarray | None]:
        """Return torch's numbers for each of jax's draws, in jax's order of axes; None for a draw without a partner."""
        pairs = {j: (self.torch[i], self.jax[j], j in self.turned, self.orders.get(j)) for j, i in self.pairs.items()}
        return [fitting(*pairs[j]) if j in pairs else None for j in range(len(self.jax))]

    def readings(self) -> Iterator["DrawPairs"]:
        """Yield these pairs with each way to read the numbers.

        Code may keep a unit where a uniform number is below a threshold or above it, and may draw the units to drop instead of
        the units to keep. Where several orders of axes fit, code may have any of them, as a rule the same one everywhere. All
        draws of one line of code are read in the same way.
        """
        lines = defaultdict(set)
        for j, i in self.pairs.items():
            if UNIFORM in (self.torch[i].kind, self.jax[j].kind) or is_opposite(self.jax[j], self.torch[i]):
                lines[self.torch[i].line, self.jax[j].line].add(j)
        turned = itertools.product((False, True), repeat=len(lines))
        both = itertools.product(self._orders(), turned)
        for orders, each in itertools.islice(both, MOST_READINGS):
            yield replace(self, orders=orders, turned=frozenset().union(*itertools.compress(lines.values(), each)))

    def _orders(self) -> Iterator[Mapping[int, Order]]:
        """Yield other orders of axes for all draws that they fit, after none; then for the draws of each line of code alone."""
        yield {}
        lines = defaultdict(dict)
        for j, i in self.pairs.items():
            for order in other_orders(self.torch[i].shape, self.jax[j].shape):
                lines[order, self.torch[i].line, self.jax[j].line][j] = order
        for order in dict.fromkeys(order for order, *_ in lines):
            yield {j: order for (other, *_), those in lines.items() if other == order for j in those}
        if len({key[1:] for key in lines}) > 1:
            yield from lines.values()

    def left(self) -> tuple[list[int], list[int]]:
        """Indices of the unpaired draws of torch and of jax."""
        theirs = [i for i in range(len(self.torch)) if i not in self.pairs.values()]
        return theirs, [j for j in range(len(self.jax)) if j not in self.pairs]

    def untied(self) -> str:
        """Message about draws that neither side can take from the other, one of them of a kind that cannot be paired.

        Returns '' if there are none: each unpaired draw is then known to exist on one side only.
        """
        theirs, ours = ([side[k] for k in left] for side, left in zip((self.torch, self.jax), self.left(), strict=True))
        free = [each for each in theirs if each.kind not in SHARED]
        if not (theirs and self.unseen) and not (free and ours):
            return ""
        lines = [f"at {line}" for line in self.unseen] or [each.says for each in ours]
        says = f"torch draws {(free or theirs)[0].says}, jax draws {lines[0]}, and neither can be given the other's numbers"
        return f"{says}: draw them outside and give them to both models as inputs, or compare with mode='eval'"

    def differences(self) -> list[tuple[str, str, str]]:
        """List (side, path, message) of each draw that only one side has, and of each pair with different rates."""
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
        """True if the two draws keep units at different rates."""
        return mine.kind == other.kind and (not same_rate(mine, other) or (turned and is_opposite(mine, other)))

    def says(self) -> str:
        """Number of paired draws, in words."""
        return f"{count(len(self.pairs), 'draw')} at the same places, with torch's numbers on both sides"


def pair_draws(
    torch: Sequence[Draw], jax: Sequence[Draw], parameters: Mapping[str, str], unseen: Sequence[str] = ()
) -> DrawPairs:
    """Pair draws in order first, then the remaining ones in any order.

    `parameters` maps names of jax's parameters to torch's; it tells which modules correspond.
    """
    modules = ModuleMap(parameters)
    scores = np.array([[score(mine, other, modules) for other in torch] for mine in jax]).reshape(len(jax), len(torch))
    pairs = dict(in_order(scores))
    for j in range(len(jax)):
        free = [i for i in range(len(torch)) if i not in pairs.values() and scores[j, i] > 0]
        if j not in pairs and free:
            pairs[j] = max(free, key=lambda i: scores[j, i])
    return DrawPairs(torch, jax, pairs, unseen)


def score(mine: Draw, other: Draw, modules: ModuleMap) -> float:
    """Score of pairing two draws; 0 if they cannot be paired."""
    same_kind = mine.kind == other.kind and mine.kind in SHARED
    if not (same_kind or {mine.kind, other.kind} == {DROPOUT, UNIFORM}) or not orders_for(other.shape, mine.shape):
        return 0.0
    around = modules.of(f"{mine.path}.(draw)")
    same = around == other.path or around == other.path.rpartition(".")[0]
    beside = below(other.path, around) or below(around, other.path)
    place = SAME_MODULE if same else AROUND if beside else ELSEWHERE
    return place + 0.4 * same_rate(mine, other) if same_kind else OTHER_KIND * place


def same_rate(mine: Draw, other: Draw) -> bool:
    """True if both keep the same share of units, or one keeps the share that the other drops: it draws the units to drop."""
    return abs(mine.keep - other.keep) < SAME_RATE or is_opposite(mine, other)


def is_opposite(mine: Draw, other: Draw) -> bool:
    """True if jax may draw the units to drop: its rate is 1 minus torch's."""
    both, apart = mine.kind == other.kind == DROPOUT, abs(mine.keep - other.keep) >= SAME_RATE
    return both and apart and abs(1 - mine.keep - other.keep) < SAME_RATE


def in_order(scores: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of the best alignment: rows and columns both ascend."""
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


def other_orders(torch: tuple[int, ...], jax: tuple[int, ...]) -> Iterator[Order]:
    """Yield the orders of torch's axes that fit jax's shape, without the first, and without those that only exchange the last
    two of four axes or more: queries with keys, or rows with columns."""
    for order in orders_for(torch, jax)[1:]:
        if len(order) < 4 or order[:-2] != tuple(range(len(order) - 2)):
            yield order


def fitting(torch: Draw, jax: Draw, turned: bool, order: Order | None = None) -> np.ndarray:
    """torch's numbers in jax's order of axes; None: the first that fits.

    torch keeps a unit where its uniform number is below the keep probability; if one side draws uniform numbers and the other a
    mask, the mask follows from the same numbers.
    """
    uniform = UNIFORM in (torch.kind, jax.kind)
    numbers = numbers_of(replace(torch, kind=UNIFORM) if uniform else torch)
    order = order or orders_for(torch.shape, jax.shape)[0]
    numbers = to_jax_axes(1 - numbers if turned and uniform else numbers, order, jax.shape)
    if uniform:
        return numbers < jax.keep if jax.kind == DROPOUT else numbers
    return ~numbers if is_opposite(jax, torch) and not turned else numbers


def in_groups(mine: Draw, other: Draw) -> bool:
    """True if jax draws one number where torch draws several, along whole axes."""
    both = zip(mine.shape, other.shape, strict=False)
    same_rank = mine.kind == other.kind and len(mine.shape) == len(other.shape) and mine.shape != other.shape
    return same_rank and all(m in (1, n) for m, n in both)
