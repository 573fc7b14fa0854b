"""Which module of ours is which of torch's: the two that hold the same parameters, as the rules of the conversion have them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, weights_of
from jaxformer.parity.watch import Site


def layer_names(name: str, leaf: Any, rules: Family) -> list[str]:
    """A parameter's name, or for a stacked one the name in each layer: its number stands behind the stack's. Linen's variables
    hold their parameters under 'params', which no module's path has."""
    if (start := rules.start(name)) is not None and rules.stacked(name):
        start, rest = start.removeprefix("params."), name.removeprefix(start)
        return [f"{start}{layer}.{rest}" for layer in range(leaf.shape[0])]
    return [name.removeprefix("params.")]


def layer_arrays(tree: PyTree, rules: Family) -> dict[str, np.ndarray]:
    """Our parameters in float64, layer by layer."""
    arrays = {}
    for name, leaf in weights_of(tree, rules).items():
        array = np.asarray(leaf, np.float64)
        arrays |= zip(layer_names(name, leaf, rules), array if rules.stacked(name) else [array], strict=True)
    return arrays


def parameter_pairs(like: PyTree, rules: Family) -> dict[str, str]:
    """Names of our parameters, layer by layer -> torch's."""
    pairs: dict[str, str] = {}
    for name, leaf in weights_of(like, rules).items():
        ours = layer_names(name, leaf, rules)
        pairs |= zip(ours, rules.torch_names(name, len(ours)), strict=True)
    return pairs


def pair_modules(ours: Iterable[str], theirs: Iterable[str], parameters: Mapping[str, str]) -> dict[str, str]:
    """Paths of our modules -> torch's, where both hold the same parameters, whole ones.

    Of several with the same, those that have them of their own are paired first, then the outer ones.
    """
    own = {path: whole_tensors(path, parameters) for path in ours}
    other = {path: frozenset(name for name in parameters.values() if below(name, path)) for path in theirs}
    pairs = {path: owner for path, owner in owners(parameters).items() if own.get(path) and other.get(owner) == own[path]}
    candidates: dict[frozenset[str], list[str]] = defaultdict(list)
    for path in sorted(set(other) - set(pairs.values()), key=depth):
        candidates[other[path]].append(path)
    for path in sorted(set(own) - set(pairs), key=depth):
        if own[path] and candidates[own[path]]:
            pairs[path] = candidates[own[path]].pop(0)
    return pairs


def whole_tensors(path: str, parameters: Mapping[str, str]) -> frozenset[str]:
    """torch's names of what lies in a module of ours; none, if it holds only a part of one that torch packs."""
    inside = {theirs for name, theirs in parameters.items() if below(name, path)}
    outside = {theirs for name, theirs in parameters.items() if not below(name, path)}
    return frozenset() if inside & outside else frozenset(inside)


def owners(parameters: Mapping[str, str]) -> dict[str, str]:
    """Of our modules with parameters of their own: the torch modules that have these."""
    return {name.rpartition(".")[0]: theirs.rpartition(".")[0] for name, theirs in parameters.items()}


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
