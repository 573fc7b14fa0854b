"""Which name means which, where values do not tell: modules that are known, and names that read most alike."""

import difflib
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

import numpy as np

from jaxformer.parity.trace.call_sites import ancestors, below, common_start

DIGITS = re.compile(r"\d+")


class ModuleMap:
    """JAX module -> torch module, as far as pairs of tensor names are known."""

    def __init__(self, pairs: Mapping[str, str]):
        beneath: dict[str, list[str]] = defaultdict(list)
        for ours, theirs in pairs.items():
            for path in ancestors(ours):
                beneath[path].append(theirs)
        self.starts = {path: common_start(names) if len(names) < len(pairs) else "" for path, names in beneath.items()}

    def of(self, name: str) -> str:
        """That of the innermost module around it of which any is known; '' if it is around all of them."""
        return next((self.starts[path] for path in ancestors(name) if path in self.starts), "")


def closeness(module: str, name: str) -> int:
    """How many modules around a torch tensor lead to the module where it is expected; -1 in another layer, or far away."""
    path, wanted = name.split("."), module.split(".") if module else []
    shared = next((i for i, part in enumerate(wanted) if path[i : i + 1] != [part]), len(wanted))
    astray = shared < len(wanted) and (shared < len(wanted) - 1 or wanted[shared].isdigit())
    return -1 if astray else shared


def nearest_pairs(
    ours: list[str], theirs: list[str], modules: ModuleMap, fits: Container[tuple[str, str]] | None = None
) -> list[tuple[str, str]]:
    """Pairs, of those that fit, of which each is the nearest to the other; ties are left out."""
    own, other = by_rank(ours), by_rank(theirs)
    scores = np.full((len(ours), len(theirs)), -np.inf)
    for i, mine in enumerate(ours):
        for j, name in enumerate(theirs):
            if (fits is None or (mine, name) in fits) and (close := closeness(modules.of(mine), name)) >= 0:
                scores[i, j] = 2 * close + difflib.SequenceMatcher(None, own[mine], other[name], autojunk=False).ratio()
    pairs = []
    while (found := _mutual(scores)) is not None:
        i, j = found
        pairs.append((ours[i], theirs[j]))
        scores[i], scores[:, j] = -np.inf, -np.inf
    return pairs


def same_word(one: str, other: str) -> bool:
    """Whether parts of names of both sides mean the same: query and query, q and q_proj, mean and running_mean."""
    return one == other or one in other.split("_") or other in one.split("_")


def only_pair(pair: tuple[str, str], among: Iterable[tuple[str, str]]) -> bool:
    """Whether nothing else fits either of the two."""
    return not any(pair != other and (pair[0] == other[0] or pair[1] == other[1]) for other in among)


def blank(name: str) -> str:
    """Without its numbers: the same for each layer."""
    return DIGITS.sub("#", name)


def _mutual(scores: np.ndarray) -> tuple[int, int] | None:
    """The row and the column whose largest number is in both the only one."""
    for i, row in enumerate(scores):
        best = row.max(initial=-np.inf)
        if best > -np.inf and (row == best).sum() == 1:
            j = int(row.argmax())
            if (scores[:, j] >= best).sum() == 1:
                return i, j
    return None


def by_rank(names: Iterable[str]) -> dict[str, str]:
    """Names with their numbers counted from 0 among those that else are the same: norm1 and norm2 are the first and second."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in names:
        kinds[blank(name)].append(name)
    ranked = {}
    for alike in kinds.values():
        columns = [sorted(set(column)) for column in zip(*(map(int, DIGITS.findall(name)) for name in alike), strict=True)]
        for name in alike:
            ranks = iter(str(column.index(int(n))) for column, n in zip(columns, DIGITS.findall(name), strict=True))
            ranked[name] = DIGITS.sub(lambda _, ranks=ranks: next(ranks), name)
    return ranked


def stack_start(name: str, layers: Mapping[str, tuple[str, ...]], others: Iterable[str]) -> str:
    """Where a stacked JAX tensor's name is cut to put the layer's number in.

    It is the largest module in which all tensors are stacked alike, and in which each layer lies in a torch module of its own;
    of those that hold the same tensors, the inner one. `layers` has torch's names of each stacked JAX tensor, `others` the
    JAX tensors without layers.
    """
    others, start, most = list(others), name, 0
    for path in filter(None, ancestors(name)):
        inside = [names for other, names in layers.items() if below(other, path)]
        alike = len({len(names) for names in inside}) == 1 and not any(below(other, path) for other in others)
        if not alike or len({common_start(layer) for layer in zip(*inside, strict=True)}) < len(inside[0]):
            break
        if len(inside) > most:
            start, most = f"{path}.", len(inside)
    return start
