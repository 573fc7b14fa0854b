"""Pairing of names, where values do not tell: by modules that are known, and by the similarity of names."""

import difflib
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

import numpy as np

from jaxformer.parity.trace.call_sites import ancestors, below, common_start

DIGITS = re.compile(r"\d+")


class ModuleMap:
    """Map of JAX modules to torch modules, from the pairs of tensor names known so far."""

    def __init__(self, pairs: Mapping[str, str]):
        beneath: dict[str, list[str]] = defaultdict(list)
        for jax, torch in pairs.items():
            for path in ancestors(jax):
                beneath[path].append(torch)
        self.starts = {path: common_start(names) if len(names) < len(pairs) else "" for path, names in beneath.items()}

    def of(self, name: str) -> str:
        """torch's module for the innermost known module around `name`; '' if that holds all known tensors, or none is known."""
        return next((self.starts[path] for path in ancestors(name) if path in self.starts), "")


def closeness(module: str, name: str) -> int:
    """Number of modules that a torch tensor's path shares with the expected module; -1 in another layer or too far away."""
    path, wanted = name.split("."), module.split(".") if module else []
    shared = next((i for i, part in enumerate(wanted) if path[i : i + 1] != [part]), len(wanted))
    astray = shared < len(wanted) and (shared < len(wanted) - 1 or wanted[shared].isdigit())
    return -1 if astray else shared


def nearest_pairs(
    jax: list[str], torch: list[str], modules: ModuleMap, fits: Container[tuple[str, str]] | None = None
) -> list[tuple[str, str]]:
    """Pair the names that fit if each is the nearest to the other; ties are left out."""
    own, other = by_rank(jax), by_rank(torch)
    scores = np.full((len(jax), len(torch)), -np.inf)
    for i, mine in enumerate(jax):
        for j, name in enumerate(torch):
            if (fits is None or (mine, name) in fits) and (close := closeness(modules.of(mine), name)) >= 0:
                scores[i, j] = 2 * close + difflib.SequenceMatcher(None, own[mine], other[name], autojunk=False).ratio()
    pairs = []
    while (found := _mutual(scores)) is not None:
        i, j = found
        pairs.append((jax[i], torch[j]))
        scores[i], scores[:, j] = -np.inf, -np.inf
    return pairs


def same_word(one: str, other: str) -> bool:
    """True if two parts of names mean the same: query and query, q and q_proj, mean and running_mean."""
    return one == other or one in other.split("_") or other in one.split("_")


def only_pair(pair: tuple[str, str], among: Iterable[tuple[str, str]]) -> bool:
    """True if neither of the two fits anything else."""
    return not any(pair != other and (pair[0] == other[0] or pair[1] == other[1]) for other in among)


def blank(name: str) -> str:
    """Name with its numbers blanked: the same for each layer."""
    return DIGITS.sub("#", name)


def _mutual(scores: np.ndarray) -> tuple[int, int] | None:
    """Find a row and a column whose largest score is the same entry, unique in both."""
    for i, row in enumerate(scores):
        best = row.max(initial=-np.inf)
        if best > -np.inf and (row == best).sum() == 1:
            j = int(row.argmax())
            if (scores[:, j] >= best).sum() == 1:
                return i, j
    return None


def by_rank(names: Iterable[str]) -> dict[str, str]:
    """Renumber names from 0 among names that differ in numbers only: norm1 and norm2 are the first and the second."""
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
    """Prefix of a stacked JAX tensor's name after which the layer's number is inserted.

    The prefix is the largest module in which all tensors are stacked alike and each layer lies in a torch module of its own; of
    modules that hold the same tensors, the innermost. `layers` maps each stacked JAX tensor to torch's names, `others` are the
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
