"""Which module of ours is which of torch's: the two that hold the same parameters, as the rules of the conversion have them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family
from jaxformer.nn.tree import named_leaves
from jaxformer.parity.watch import Site


def layer_names(name: str, leaf: Any, rules: Family) -> list[str]:
    """A parameter's name, or for a stacked one the name in each layer: its number stands behind the stack's."""
    for start in rules.stacks:
        if name.startswith(start):
            return [f"{start}{layer}.{name.removeprefix(start)}" for layer in range(leaf.shape[0])]
    return [name]


def layer_arrays(tree: PyTree, rules: Family) -> dict[str, np.ndarray]:
    """Our parameters in float64, layer by layer."""
    arrays = {}
    for name, leaf in named_leaves(tree).items():
        array = np.asarray(leaf, np.float64)
        arrays |= zip(layer_names(name, leaf, rules), array if rules.stacked(name) else [array], strict=True)
    return arrays


def parameter_pairs(like: PyTree, rules: Family) -> dict[str, str]:
    """Names of our parameters, layer by layer -> torch's."""
    pairs: dict[str, str] = {}
    for name, leaf in named_leaves(like).items():
        ours = layer_names(name, leaf, rules)
        pairs |= zip(ours, rules.torch_names(name, len(ours)), strict=True)
    return pairs


def pair_modules(ours: Iterable[str], theirs: Iterable[str], parameters: Mapping[str, str]) -> dict[str, str]:
    """Paths of our modules -> torch's. Of several that hold the same parameters, the outer ones are paired first."""
    own = {path: frozenset(parameters[name] for name in parameters if below(name, path)) for path in ours}
    other = {path: frozenset(name for name in parameters.values() if below(name, path)) for path in theirs}
    candidates: dict[frozenset[str], list[str]] = defaultdict(list)
    for path in sorted(other, key=depth):
        candidates[other[path]].append(path)
    pairs = {}
    for path in sorted(own, key=depth):
        if own[path] and candidates[own[path]]:
            pairs[path] = candidates[own[path]].pop(0)
    return pairs


def pair_calls(ours: Iterable[Site], theirs: Iterable[Site], modules: Mapping[str, str]) -> dict[Site, Site]:
    """Our calls -> torch's calls of the same module, the first with the first."""
    known = set(theirs)
    pairs = {site: Site(modules[site.path], site.call) for site in ours if site.path in modules}
    return {site: other for site, other in pairs.items() if other in known}


def below(name: str, path: str) -> bool:
    """Whether a parameter lies in a module."""
    return not path or name.startswith(f"{path}.")


def depth(path: str) -> tuple[int, str]:
    """The model itself first, then its children, then theirs."""
    return (path.count(".") + 1 if path else 0), path
