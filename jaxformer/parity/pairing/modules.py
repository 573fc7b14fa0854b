"""Pairing of JAX modules with torch modules that hold the same parameters."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, weights_of
from jaxformer.parity.numerics.axis_order import CLEAR, order_of, orders_for, to_jax_axes
from jaxformer.parity.numerics.metrics import distance
from jaxformer.parity.pairing.names import blank
from jaxformer.parity.trace.call_records import Record, Trace
from jaxformer.parity.trace.call_sites import CALL, Site, ancestors, below, depth, last, parameters_of, parent

SAME = 1e-9
"""Largest relL2 of arrays that count as equal."""
Calls = Mapping[Site, Sequence[np.ndarray]]
"""Outputs of each call."""


def numbered_stacks(paths: Iterable[str]) -> frozenset[str]:
    """Find the paths before a layer's number, among the paths of calls."""
    parts = [path.split(".") for path in paths]
    return frozenset(".".join(path[:i]) for path in parts for i, part in enumerate(path) if i and part == "0")


def layer_names(name: str, leaf: Any, rules: Family, stacks: Container[str] = ()) -> list[str]:
    """Names of a parameter: one for each layer if it is stacked, else its own.

    The layer's number stands where jax's calls have it, after one of `stacks`, else after the stack of the rules. The prefix
    'params' of Linen's variables is removed, since no module path has it.
    """
    path = name.removeprefix("params.")
    if not rules.stacked(name):
        return [path]
    called = (f"{at}." for at in (path, *ancestors(path)) if at in stacks)
    start = next((at for at in called if not path[len(at) :].partition(".")[0].isdigit()), None)
    start = (rules.start(name) or "").removeprefix("params.") if start is None else start
    return [f"{start}{layer}.{path[len(start) :]}" for layer in range(leaf.shape[0])]


def layer_arrays(tree: PyTree, rules: Family, stacks: Container[str] = ()) -> dict[str, np.ndarray]:
    """JAX parameters in float64, layer by layer."""
    arrays = {}
    for name, leaf in weights_of(tree, rules).items():
        array = np.asarray(leaf, np.float64)
        arrays |= zip(layer_names(name, leaf, rules, stacks), array if rules.stacked(name) else [array], strict=True)
    return arrays


def parameter_pairs(like: PyTree, rules: Family, stacks: Container[str] = ()) -> dict[str, str]:
    """Map names of the JAX parameters, layer by layer, to torch's.

    A parameter that joins several torch tensors is listed as `name[0]`, `name[1]`, ...
    """
    pairs: dict[str, str] = {}
    for name, leaf in weights_of(like, rules).items():
        jax = layer_names(name, leaf, rules, stacks)
        for mine, torch in zip(jax, rules.sources(name, len(jax)), strict=True):
            pairs |= {f"{mine}[{i}]": it for i, it in enumerate(torch)} if torch[1:] else {mine: torch[0]}
    return pairs


def pair_modules(jax: Iterable[str], torch: Iterable[str], parameters: Mapping[str, str]) -> dict[str, str]:
    """Pair paths of JAX modules with torch modules that hold the same parameters, whole ones.

    Among modules with the same parameters, those that own them directly are paired first, then the outer ones. If one side has
    more modules, for example because a list of layers is called too, modules of the same name are paired.
    """
    own = {path: whole_tensors(path, parameters) for path in jax}
    other = {path: frozenset(name for name in parameters.values() if below(name, path)) for path in torch}
    pairs = {path: owner for path, owner in owners(parameters).items() if own.get(path) and other.get(owner) == own[path]}
    mine, its = _by_tensors(own, pairs), _by_tensors(other, pairs.values())
    return pairs | {a: b for held in mine if held in its for a, b in _side_by_side(mine[held], its[held])}


def _by_tensors(held: Mapping[str, frozenset[str]], paired: Iterable[str]) -> dict[frozenset[str], list[str]]:
    """Unpaired paths grouped by the tensors that they hold, outer modules first."""
    found: dict[frozenset[str], list[str]] = defaultdict(list)
    for path in sorted(held.keys() - set(paired), key=depth):
        if held[path]:
            found[held[path]].append(path)
    return found


def _side_by_side(jax: list[str], torch: list[str]) -> Iterator[tuple[str, str]]:
    """Pair paths one to one; if one side has more, match sequences of equal names first, and the paths between them in
    order."""
    if len(jax) == len(torch):
        yield from zip(jax, torch, strict=True)
        return
    alike = SequenceMatcher(None, [*map(last, jax)], [*map(last, torch)], autojunk=False)
    for _, i, i_end, j, j_end in alike.get_opcodes():
        yield from zip(jax[i:i_end], torch[j:j_end], strict=False)


def pair_without_parameters(
    jax: Calls, torch: Trace, parameters: Mapping[str, str], paired: Mapping[str, str]
) -> dict[str, str]:
    """Pair JAX modules that hold no parameters with torch modules that change their input (dropout does not in inference mode).

    Only modules inside paired modules are considered. They are paired if they have one name, or if each side has only one.
    Their outputs in the normal run must also be similar, since one name may mean two things. After the first of the `paired`
    modules whose outputs are not similar, no outputs are: names alone decide there, for the single module that may have caused
    the difference, and for modules whose like are paired in other layers.
    """
    around = {"": ""} | pair_modules(_modules_around(parameters), _modules_around(parameters.values()), parameters)
    mine = _without(jax, parameters)
    plain = [site for site in _without(torch, parameters.values()) if torch[site].inputs]
    its = [site for site in plain if _acts(torch[site])]
    idle = {(parent(site.path), last(site.path)) for site in plain if site not in its}
    before, behind = _at_first_difference(jax, torch, paired)
    pairs: dict[str, str] = {}
    suspects: list[tuple[Site, Site]] = []
    of_one_name: list[tuple[Site, Site]] = []
    for path, other in around.items():
        free = [site for site in mine if parent(site.path) == path and (other, last(site.path)) not in idle]
        both = [(site, each) for site in free for each in its if parent(each.path) == other]
        near = [pair for pair in both if much_the_same(jax[pair[0]], torch[pair[1]].output)]
        alike = [pair for pair in both if last(pair[0].path) == last(pair[1].path)]
        alike = [pair for pair in alike if fit(jax[pair[0]], torch[pair[1]].output)]
        named = [pair for pair in alike if pair in near or pair[1] in behind]
        suspects += [pair for pair in alike if pair[1] in before and pair not in near]
        of_one_name += alike
        taken = {site for pair in named for site in pair}
        only = [pair for pair in near if not taken & {*pair}]
        alone = len(only) == 1 == len([site for site in free if site not in taken])
        pairs |= {site.path: each.path for site, each in (*named, *(only if alone else ()))}
    pairs |= {site.path: each.path for site, each in suspects if len(suspects) == 1}
    kinds = {(blank(path), blank(other)) for path, other in pairs.items()}
    return pairs | {a.path: b.path for a, b in of_one_name if (blank(a.path), blank(b.path)) in kinds}


def _at_first_difference(jax: Calls, torch: Trace, paired: Mapping[str, str]) -> tuple[set[Site], set[Site]]:
    """Find torch's calls around the first difference from jax among the `paired` modules.

    Returns the calls between the last module that is equal and the first one that differs, and the calls from the first
    dissimilar module on.
    """
    back, sites = {other: path for path, other in paired.items()}, [*torch]
    before, start = None, 0
    for n, site in enumerate(sites):
        own = Site(back.get(site.path, "(none)"), site.call)
        if own in jax:
            if before is None and not much_the_same(jax[own], torch[site].output, SAME):
                before = {*sites[start:n]}
            if not much_the_same(jax[own], torch[site].output):
                return before or set(), {*sites[n:]}
            start = n + 1
    return before or set(), set()


def _acts(record: Record) -> bool:
    """True if a call's output differs from its input."""
    return not np.array_equal(record.inputs[0], record.output[0])


def fit(jax: Sequence[np.ndarray], torch: Sequence[np.ndarray]) -> bool:
    """True if there are equally many arrays, of the same shapes in some order of axes."""
    return len(jax) == len(torch) and all(orders_for(t.shape, j.shape) for j, t in zip(jax, torch, strict=True))


def much_the_same(jax: Sequence[np.ndarray], torch: Sequence[np.ndarray], most: float = CLEAR) -> bool:
    """True if there are equally many arrays, and the relL2 of each is at most `most`, in some order of axes."""
    if not fit(jax, torch) or {array.dtype.kind for array in (*jax, *torch)} != {"f"}:
        return False
    both = [(j, to_jax_axes(t, order_of(t, j) or (), j.shape)) for j, t in zip(jax, torch, strict=True)]
    return all(distance(j, t) <= most for j, t in both)


def _without(calls: Iterable[Site], names: Iterable[str]) -> list[Site]:
    """First call of every module that holds none of these parameters."""
    holding = _modules_around(names)
    return [site for site in calls if not site.call and site.path not in holding and site != CALL]


def _modules_around(names: Iterable[str]) -> set[str]:
    """Paths of the modules around these parameters."""
    return {module for name in names for module in ancestors(name)}


def whole_tensors(path: str, parameters: Mapping[str, str]) -> frozenset[str]:
    """torch's names of the tensors that a JAX module holds; empty if it holds only a part of a packed tensor."""
    own = {*parameters_of(path, parameters)}
    inside, outside = ({torch for name, torch in parameters.items() if (name in own) == held} for held in (True, False))
    return frozenset() if inside & outside else frozenset(inside)


def owners(parameters: Mapping[str, str]) -> dict[str, str]:
    """Map JAX modules with parameters of their own to the torch modules that have these parameters."""
    return {parent(name): parent(torch) for name, torch in parameters.items()}


def without_helpers(jax: Calls, torch: Trace, modules: Mapping[str, str], *, whole: bool) -> list[Site]:
    """Drop calls of helper methods from jax's calls.

    If a JAX module is called more often than torch's, its calls are dropped whose output has the shape of none of torch's first
    outputs; with `whole`, of none of torch's outputs.
    """
    given: dict[str, list[np.ndarray]] = defaultdict(list)
    for site, record in torch.items():
        given[site.path] += record.output if whole else record.output[:1]
    torch_calls, calls = (Counter(site.path for site in sites) for sites in (torch, jax))

    def helps(site: Site) -> bool:
        other = modules.get(site.path, site.path)
        more = site.path in modules and 0 < torch_calls[other] < calls[site.path]
        return more and not any(orders_for(array.shape, jax[site][0].shape) for array in given[other])

    return [site for site in jax if not helps(site)]


def pair_calls(jax: Iterable[Site], torch: Iterable[Site], modules: Mapping[str, str]) -> dict[Site, Site]:
    """Map jax's calls to torch's calls of the same module, in order.

    A module that jax calls more often is not paired, since each of its calls does a part of the work. Layers of an opaque loop
    are such calls: they share one path.
    """
    own, other = defaultdict(list), defaultdict(list)
    for calls, sites in ((own, jax), (other, torch)):
        for site in sites:
            calls[site.path].append(site)
    both = ((own[path], other[name]) for path, name in modules.items())
    return {mine: its for some, more in both if len(some) <= len(more) for mine, its in zip(some, more, strict=False)}


def without_uneven_gradients(torch: Trace, jax: Iterable[Site], pairs: Mapping[Site, Site]) -> Trace:
    """Remove the gradients of torch's calls that one side makes more often: each call then does another portion of the work."""
    counts = [Counter(site.path for site in sites) for sites in (jax, torch)]
    uneven = {other for site, other in pairs.items() if counts[0][site.path] != counts[1][other.path]}
    return {
        site: replace(record, input_gradients=(), output_gradients=()) if site in uneven else record
        for site, record in torch.items()
    }


def holder(path: str, paths: Container[str]) -> str:
    """Path of the innermost module around a tap: a wrong tap also shows in the gradient that this module sends back."""
    return next((module for module in ancestors(path) if module in paths), CALL.path)
