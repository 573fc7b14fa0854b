"""Which JAX module is which torch module: the two that hold the same parameters; and attention's scores and weights."""

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
from jaxformer.parity.trace.call_records import Record, Trace, is_attention
from jaxformer.parity.trace.call_sites import ATTENTION, CALL, Site, ancestors, below, depth, last, parameters_of, parent

SAME = 1e-9
"""relL2 of arrays that do not differ."""
Calls = Mapping[Site, Sequence[np.ndarray]]
"""What each call gives."""


def numbered_stacks(paths: Iterable[str]) -> frozenset[str]:
    """Of paths of calls, what is before a layer's number."""
    parts = [path.split(".") for path in paths]
    return frozenset(".".join(path[:i]) for path in parts for i, part in enumerate(path) if i and part == "0")


def layer_names(name: str, leaf: Any, rules: Family, stacks: Container[str] = ()) -> list[str]:
    """A parameter's name, or for a stacked one the name in each layer: its number stands where jax's calls have it, behind one
    of `stacks`, else behind the stack of the rules. Linen's variables hold their parameters under 'params', which no module's
    path has."""
    path = name.removeprefix("params.")
    if not rules.stacked(name):
        return [path]
    called = (f"{at}." for at in (path, *ancestors(path)) if at in stacks)
    start = next((at for at in called if not path[len(at) :].partition(".")[0].isdigit()), None)
    start = (rules.start(name) or "").removeprefix("params.") if start is None else start
    return [f"{start}{layer}.{path[len(start) :]}" for layer in range(leaf.shape[0])]


def layer_arrays(tree: PyTree, rules: Family, stacks: Container[str] = ()) -> dict[str, np.ndarray]:
    """The JAX parameters in float64, layer by layer."""
    arrays = {}
    for name, leaf in weights_of(tree, rules).items():
        array = np.asarray(leaf, np.float64)
        arrays |= zip(layer_names(name, leaf, rules, stacks), array if rules.stacked(name) else [array], strict=True)
    return arrays


def parameter_pairs(like: PyTree, rules: Family, stacks: Container[str] = ()) -> dict[str, str]:
    """Names of the JAX parameters, layer by layer -> torch's. One that torch has in several tensors is `name[0]`, ..."""
    pairs: dict[str, str] = {}
    for name, leaf in weights_of(like, rules).items():
        ours = layer_names(name, leaf, rules, stacks)
        for mine, theirs in zip(ours, rules.sources(name, len(ours)), strict=True):
            pairs |= {f"{mine}[{i}]": it for i, it in enumerate(theirs)} if theirs[1:] else {mine: theirs[0]}
    return pairs


def pair_modules(ours: Iterable[str], theirs: Iterable[str], parameters: Mapping[str, str]) -> dict[str, str]:
    """Paths of JAX modules -> torch's, where both hold the same parameters, whole ones.

    Of several with the same, those that have them of their own are paired first, then the outer ones; where one side has more,
    as the call of a list of layers, those of one name.
    """
    own = {path: whole_tensors(path, parameters) for path in ours}
    other = {path: frozenset(name for name in parameters.values() if below(name, path)) for path in theirs}
    pairs = {path: owner for path, owner in owners(parameters).items() if own.get(path) and other.get(owner) == own[path]}
    mine, its = _by_tensors(own, pairs), _by_tensors(other, pairs.values())
    return pairs | {a: b for held in mine if held in its for a, b in _side_by_side(mine[held], its[held])}


def _by_tensors(held: Mapping[str, frozenset[str]], paired: Iterable[str]) -> dict[frozenset[str], list[str]]:
    """The paths that are not paired, those of the same tensors together, the outer ones first."""
    found: dict[frozenset[str], list[str]] = defaultdict(list)
    for path in sorted(held.keys() - set(paired), key=depth):
        if held[path]:
            found[held[path]].append(path)
    return found


def _side_by_side(ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    """One with one; where one side has more, neighbours of the same names first, and what is between them in order."""
    if len(ours) == len(theirs):
        yield from zip(ours, theirs, strict=True)
        return
    alike = SequenceMatcher(None, [*map(last, ours)], [*map(last, theirs)], autojunk=False)
    for _, i, i_end, j, j_end in alike.get_opcodes():
        yield from zip(ours[i:i_end], theirs[j:j_end], strict=False)


def pair_without_parameters(
    ours: Calls, theirs: Trace, parameters: Mapping[str, str], paired: Mapping[str, str]
) -> dict[str, str]:
    """Paths of JAX modules that hold no parameters -> torch's that change what they are given, as dropout does not here: in
    modules that hold the same ones, those of one name, or the only one of each side.

    Both give much the same in the normal run, else one name may mean two things. But after a call of `paired` modules that
    does not, nothing does, and names alone decide; as they do for the one that may have made that difference.
    """
    around = {"": ""} | pair_modules(_modules_around(parameters), _modules_around(parameters.values()), parameters)
    mine = _without(ours, parameters)
    plain = [site for site in _without(theirs, parameters.values()) if theirs[site].inputs]
    its = [site for site in plain if _acts(theirs[site])]
    idle = {(parent(site.path), last(site.path)) for site in plain if site not in its}
    before, behind = _at_first_difference(ours, theirs, paired)
    pairs: dict[str, str] = {}
    suspects: list[tuple[Site, Site]] = []
    for path, other in around.items():
        free = [site for site in mine if parent(site.path) == path and (other, last(site.path)) not in idle]
        both = [(site, each) for site in free for each in its if parent(each.path) == other]
        near = [pair for pair in both if much_the_same(ours[pair[0]], theirs[pair[1]].output)]
        alike = [pair for pair in both if last(pair[0].path) == last(pair[1].path)]
        alike = [pair for pair in alike if _fit(ours[pair[0]], theirs[pair[1]].output)]
        named = [pair for pair in alike if pair in near or pair[1] in behind]
        suspects += [pair for pair in alike if pair[1] in before and pair not in near]
        taken = {site for pair in named for site in pair}
        only = [pair for pair in near if not taken & {*pair}]
        alone = len(only) == 1 == len([site for site in free if site not in taken])
        pairs |= {site.path: each.path for site, each in (*named, *(only if alone else ()))}
    return pairs | {site.path: each.path for site, each in suspects if len(suspects) == 1}


def _at_first_difference(ours: Calls, theirs: Trace, paired: Mapping[str, str]) -> tuple[set[Site], set[Site]]:
    """torch's calls right before the first of `paired` modules that does not give what jax's does, back to the last that does;
    and those from the first on that gives nothing like it."""
    back, sites = {other: path for path, other in paired.items()}, [*theirs]
    before, start = None, 0
    for n, site in enumerate(sites):
        own = Site(back.get(site.path, "(none)"), site.call)
        if own in ours:
            if before is None and not much_the_same(ours[own], theirs[site].output, SAME):
                before = {*sites[start:n]}
            if not much_the_same(ours[own], theirs[site].output):
                return before or set(), {*sites[n:]}
            start = n + 1
    return before or set(), set()


def _acts(record: Record) -> bool:
    """Whether a call gives something else than it takes."""
    return not np.array_equal(record.inputs[0], record.output[0])


def _fit(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    """Whether arrays are as many, and of the same shapes in some order of axes."""
    return len(ours) == len(theirs) and all(orders_for(t.shape, j.shape) for j, t in zip(ours, theirs, strict=True))


def much_the_same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], most: float = CLEAR) -> bool:
    """Whether arrays are as many, and each is nearer to torch's than to nothing, or than `most`, in some order of axes."""
    if not _fit(ours, theirs) or {array.dtype.kind for array in (*ours, *theirs)} != {"f"}:
        return False
    both = [(j, to_jax_axes(t, order_of(t, j) or (), j.shape)) for j, t in zip(ours, theirs, strict=True)]
    return all(distance(j, t) <= most for j, t in both)


def _without(calls: Iterable[Site], names: Iterable[str]) -> list[Site]:
    """The first call of every module in which none of these parameters lies."""
    holding = _modules_around(names)
    return [site for site in calls if not site.call and site.path not in holding and site != CALL]


def _modules_around(names: Iterable[str]) -> set[str]:
    """The modules around parameters."""
    return {module for name in names for module in ancestors(name)}


def whole_tensors(path: str, parameters: Mapping[str, str]) -> frozenset[str]:
    """torch's names of what a JAX module holds; none, if it holds only a part of one that torch packs."""
    own = {*parameters_of(path, parameters)}
    inside, outside = ({theirs for name, theirs in parameters.items() if (name in own) == held} for held in (True, False))
    return frozenset() if inside & outside else frozenset(inside)


def owners(parameters: Mapping[str, str]) -> dict[str, str]:
    """JAX modules with parameters of their own -> the torch modules that have these."""
    return {parent(name): parent(theirs) for name, theirs in parameters.items()}


def without_helpers(ours: Calls, theirs: Trace, modules: Mapping[str, str], *, whole: bool) -> list[Site]:
    """jax's calls without those of helper methods: where a JAX module is called more often than torch's, those that give
    nothing of the shape of what torch's calls give first, or `whole`, of all that they give."""
    given: dict[str, list[np.ndarray]] = defaultdict(list)
    for site, record in theirs.items():
        given[site.path] += record.output if whole else record.output[:1]
    torch_calls, calls = (Counter(site.path for site in sites) for sites in (theirs, ours))

    def helps(site: Site) -> bool:
        other = modules.get(site.path, site.path)
        more = site.path in modules and 0 < torch_calls[other] < calls[site.path]
        return more and not any(orders_for(array.shape, ours[site][0].shape) for array in given[other])

    return [site for site in ours if not helps(site)]


def pair_calls(ours: Iterable[Site], theirs: Iterable[Site], modules: Mapping[str, str]) -> dict[Site, Site]:
    """jax's calls -> torch's calls of the same module, the first with the first. Where jax's are more, each does a part of the
    work, and none is paired: so it is with layers of a loop that is not seen, which are called by one path."""
    own, other = defaultdict(list), defaultdict(list)
    for calls, sites in ((own, ours), (other, theirs)):
        for site in sites:
            calls[site.path].append(site)
    both = ((own[path], other[name]) for path, name in modules.items())
    return {mine: its for some, more in both if len(some) <= len(more) for mine, its in zip(some, more, strict=False)}


def without_uneven_gradients(theirs: Trace, ours: Iterable[Site], pairs: Mapping[Site, Site]) -> Trace:
    """A module that one side calls more often does its work in other portions: what comes back to a call is not the same."""
    counts = [Counter(site.path for site in sites) for sites in (ours, theirs)]
    uneven = {other for site, other in pairs.items() if counts[0][site.path] != counts[1][other.path]}
    return {
        site: replace(record, input_gradients=(), output_gradients=()) if site in uneven else record
        for site, record in theirs.items()
    }


def holder(path: str, paths: Container[str]) -> str:
    """The innermost module around a tap: in what that one sends back, a wrong tap shows too."""
    return next((module for module in ancestors(path) if module in paths), CALL.path)


def pair_attention(ours: Mapping[Site, Sequence[np.ndarray]], theirs: Trace, parameters: Mapping[str, str]) -> dict[Site, Site]:
    """jax's taps -> torch's scores and weights of their shape, where the modules around both, and no others, share parameters.

    `ours` has what each tap gives. Where one side has more of them than the other, nothing is compared.
    """
    taps = [site for site in ours if last(site.path) in ATTENTION]
    shown = [site for site, record in theirs.items() if is_attention(site, record)]
    own = {site.path: around(site.path, parameters) for site in taps}
    other = {site.path: around(site.path, {name: name for name in parameters.values()}) for site in shown}
    found = {
        site: [
            each
            for each in shown
            if last(site.path) == last(each.path)
            and own[site.path] & other[each.path]
            and orders_for(theirs[each].output[0].shape, ours[site][0].shape)
        ]
        for site in taps
    }
    pairs = {}
    for path in own:
        mine = [site for site in taps if site.path == path]
        fits = [each for each in shown if any(each in found[site] for site in mine)]
        alone = not any(each in fits for site in taps if site.path != path for each in found[site])
        if alone and len({each.path for each in fits}) == 1 and len(fits) == len(mine):
            pairs |= {site: each for site, each in zip(mine, fits, strict=True) if each in found[site]}
    return pairs


def around(path: str, parameters: Mapping[str, str]) -> frozenset[str]:
    """torch's names of the tensors in the innermost module around a path that has some."""
    held = (frozenset(theirs for name, theirs in parameters.items() if below(name, module)) for module in ancestors(path))
    return next(filter(None, held), frozenset())
