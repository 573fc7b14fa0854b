"""What torch's module had at hand when it made an array: the ground on which a cause is looked for.

All of it is torch's, parameters too: a cause does not depend on what a JAX model calls its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.parity.diagnose.replays import replay_of
from jaxformer.parity.numerics.float_masks import allowed, kind_of
from jaxformer.parity.numerics.metrics import EXPLAINED, as_float64, distance
from jaxformer.parity.runs.gradients_of_weights import of_own_weights
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.session import Session
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_records import Trace, is_attention, scores_of
from jaxformer.parity.trace.call_sites import ATTENTION, CALL, ArrayKey, Site, ancestors, below, last, parent

if TYPE_CHECKING:  # torch is imported where it is needed
    from jaxformer.parity.diagnose.backward import Backward
    from jaxformer.parity.diagnose.replay import Replay

Parameters = Mapping[str, np.ndarray]
BIASES = ("b", "b_2", "beta", "offset", "shift")
"""Other names of a bias in torch."""
SCORES, WEIGHTS = ATTENTION
STATISTIC, OLD = "statistic", "old"
"""A running statistic after a call in training mode, and before it."""


@dataclass(frozen=True)
class Evidence:
    """What a module had at hand, all of it torch's."""

    before: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Its float inputs as 'input', 'input 1', ..., and the outputs of its children so far by their names."""
    ids: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Its integer inputs as 'ids', 'ids 1', ..."""
    masks: Sequence[np.ndarray] = ()
    """Its masks, as booleans."""
    parameters: Parameters = field(default_factory=dict)
    """Its own by their roles: 'gain', 'bias', 'weight' (inputs first), 'table'."""
    others: Mapping[str, Parameters] = field(default_factory=dict)
    """Those of every other module: by its name where it lies beside, by its path elsewhere."""
    scores: Sequence[np.ndarray] = ()
    """The attention scores `B N T S` that were made inside of it so far."""
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Its own float buffers."""


@dataclass(frozen=True)
class Difference:
    """An array that each side makes in its own way: jax's as torch has its axes, and torch's."""

    jax: np.ndarray
    torch: np.ndarray
    kind: str = "value"
    """'value', 'scores' or 'weights' (attention's), 'statistic' (a running one), 'gradient', or 'gradients': of one of several
    weights that differ."""
    evidence: Evidence = field(default_factory=Evidence)
    what: str = ""
    """Of a gradient: which it is."""
    forced: bool = False
    """Whether jax's weights were made of torch's scores."""
    session: Session = field(default_factory=Session)
    """What explained other modules of the same run."""
    replays: Callable[[], Iterator["Replay"]] = lambda: iter(())
    """torch's calls that may have made its array, to be replayed, the likely one first; none where torch is not at hand."""
    backward: "Callable[[], Backward | None]" = lambda: None
    """torch's call that sends it back, if it is a gradient; None where torch is not at hand."""
    normal: np.ndarray | None = None
    """Of an output, jax's along the normal run, with its own axes."""

    @cached_property
    def made(self) -> Evidence:
        """The evidence without torch's array itself, which a module may have handed on as it was."""
        before = {name: array for name, array in self.evidence.before.items() if not np.array_equal(array, self.torch)}
        return replace(self.evidence, before=before)


def difference_of(traced: Traced, mismatch: Mismatch, *, gradient: bool, near: bool = False) -> Difference:
    """What is known about a mismatch; `gradient` if its arrays are gradients, `near` if the code that other taps go on with is
    not looked at."""
    both, owner, calls = (mismatch.jax, mismatch.torch), traced.pairs[mismatch.owner], traced.reference.calls
    if gradient:
        backward, kind = partial(backward_of, traced, mismatch), "gradients" if several_differ(traced, mismatch) else "gradient"
        return Difference(*both, kind, what=mismatch.what, session=traced.session, backward=backward)
    if mismatch.owner in traced.valid:
        evidence = Evidence(scores=calls[scores_of(owner)].output[:1])
        return Difference(*both, last(owner.path), evidence, forced=scores_of(mismatch.owner) in traced.valid)
    if owner.path in traced.reference.buffers:
        norm = calls.get(Site(parent(owner.path), 0))
        before = {"input": as_float64(norm.inputs[0]), OLD: as_float64(traced.reference.buffers[owner.path])} if norm else {}
        return Difference(*both, STATISTIC, Evidence(before))
    replays = partial(replays_of_mismatch, traced, mismatch, near=near)
    evidence, normal = evidence_of(traced, mismatch), normal_output(traced, mismatch)
    return Difference(*both, "value", evidence, session=traced.session, replays=replays, normal=normal)


def normal_output(traced: Traced, mismatch: Mismatch) -> np.ndarray | None:
    """jax's array along the normal run, if it is an output."""
    if mismatch.place is None or mismatch.place.part != "output":
        return None
    arrays = traced.normal_run.outputs.get(mismatch.place.site, ())
    return arrays[mismatch.place.number] if mismatch.place.number < len(arrays) else None


def replays_of_mismatch(traced: Traced, mismatch: Mismatch, *, near: bool) -> Iterator["Replay"]:
    """torch's call whose code made an array. A tap shows nothing of what comes in: there it is the call around it; and then
    the nearest whose inputs are seen in jax too, since jax's code before a tap may begin as early."""
    if mismatch.place is None or (traced.draws and traced.draws.differences()):
        return  # what one side alone draws is a cause already
    site, part, number = mismatch.place
    place, owner = ArrayKey(traced.pairs[site], part, number), traced.pairs[mismatch.owner]
    seen = {each.place.site for each in traced.isolated.mismatches if each.place and each.place.part == "inputs"}
    owners = [owner]
    if mismatch.child is None and mismatch.owner not in seen and owner not in (CALL, Site("", 0)):
        around = [*(Site(path, 0) for path in ancestors(owner.path)), CALL]
        whole = {CALL, *(place.site for place in traced.boundaries if place.part == "inputs")}
        owners = [next(each for each in around if each in those) for those in ({CALL, *traced.reference.calls}, whole)]
    buffers = traced.reference.buffers
    left = {*traced.valid, *traced.unfit}
    boundaries = frozenset(t for j, t in traced.pairs.items() if j not in left and t.path not in buffers)
    several = [*dict.fromkeys(owners)]
    for each in several[:-1] if near else several:
        replay = replay_of(traced.reference, each, place, boundaries, mismatch.torch)
        if replay and not replay.is_called:  # its code is run by another method of the module
            replay = replay_of(traced.reference, CALL, place, boundaries, mismatch.torch)
        if replay and is_whole(traced, place) and traced.normal_run.weights is not None:
            replay.jax_gradients = traced.gradients
        if replay:
            replay.constants, replay.compared = traced.constants, traced.compared
            yield replay


def is_whole(traced: Traced, place: ArrayKey) -> bool:
    """Whether it is what the user's call gives, or the whole model does and the call hands on."""
    calls = traced.reference.calls
    outputs = len(calls[CALL].output)
    if place.site not in (CALL, Site("", 0)) or outputs > 1 or place._replace(site=CALL) != ArrayKey(CALL, "output", 0):
        return False
    return np.array_equal(calls[place.site].output[0], calls[CALL].output[0], equal_nan=True)


def several_differ(traced: Traced, mismatch: Mismatch) -> bool:
    """Of a weight: whether others of the same call have other gradients too."""
    if mismatch.place is not None:
        return False
    ours, theirs = of_own_weights(traced, mismatch.owner)
    return sum(distance(ours[name], theirs[name]) > EXPLAINED for name in theirs) > 1


def backward_of(traced: Traced, mismatch: Mismatch) -> "Backward | None":
    """torch's call that sends a gradient back, to run again; None where torch is not at hand."""
    if traced.reference.source is None:
        return None
    from jaxformer.parity.diagnose.backward import Backward, flat

    owner, boundaries = traced.pairs[mismatch.owner], traced.boundaries
    if mismatch.place is None:
        ours, theirs = of_own_weights(traced, mismatch.owner)
        return Backward(traced.reference, owner, tuple(theirs), boundaries, flat(ours.values()), flat(theirs.values()))
    site, part, number = mismatch.place
    place = ArrayKey(traced.pairs[site], {"input_gradients": "inputs"}.get(part, "output"), number)
    return Backward(traced.reference, owner, place, boundaries, mismatch.jax, mismatch.torch)


def evidence_of(traced: Traced, mismatch: Mismatch) -> Evidence:
    """The inputs of torch's module, its children's outputs so far, and its parameters."""
    owner, calls = traced.pairs[mismatch.owner], traced.reference.calls
    until = list(calls).index(traced.pairs[mismatch.child] if mismatch.child else owner)
    inside = [site for site in list(calls)[:until] if owner == CALL or below(site.path, owner.path)]
    given = calls[owner].inputs
    before = arrays_before(owner, inside, calls)
    masks = tuple(array if array.dtype == bool else allowed(array) for array in given if array.dtype == bool or kind_of(array))
    modules: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in traced.weights.items():
        modules[name.rpartition(".")[0]][name.rpartition(".")[2]] = array
    rows_in = rows_are_inputs(modules.get(owner.path, {}), list(before.values()), mismatch.torch)
    roles = {path: roles_of(own, rows_in=rows_in) for path, own in modules.items()}
    own, shown = roles.pop(owner.path, {}), {traced.names.get(path, path): each for path, each in roles.items()}
    softmaxes = [site for site in inside if is_attention(site, calls[site]) and last(site.path) == SCORES]
    scores = [calls[site].output[0] for site in softmaxes]
    ids = {f"ids {i}" if i else "ids": array for i, array in enumerate(each for each in given if each.dtype.kind in "iu")}
    held = {last(name): as_float64(array) for name, array in traced.reference.buffers.items() if parent(name) == owner.path}
    return Evidence(before, ids, masks, own, nearest_first(shown, mismatch.owner.path), scores, held)


def arrays_before(owner: Site, inside: list[Site], calls: Trace) -> dict[str, np.ndarray]:
    """The float inputs of torch's module, and what the calls `inside` gave that no other one of them is around."""
    floats = [array for array in calls[owner].inputs if np.issubdtype(array.dtype, np.floating) and not kind_of(array)]
    before = {f"input {i}" if i else "input": array for i, array in enumerate(floats)}
    modules = [site for site in inside if not is_attention(site, calls[site]) and (owner == CALL or site.path != owner.path)]
    children = [site for site in modules if not any(other != site and below(site.path, other.path) for other in modules)]
    for site in children:
        for array in calls[site].output[:1]:
            if not any(np.array_equal(array, known) for known in before.values()):
                before[str(site).removeprefix(f"{owner.path}.")] = array
    return before


def roles_of(own: Parameters, *, rows_in: bool) -> dict[str, np.ndarray]:
    """What a torch module's own tensors are, told by torch's names and axes: a 'gain' and a 'bias' of one axis, or a 'weight'
    with its inputs first, which may be a 'table' too, and its bias. `rows_in` if torch has its inputs first already."""
    vectors = {name: array for name, array in own.items() if array.ndim == 1}
    matrices = [array for array in own.values() if array.ndim == 2]
    bias = next((name for name in vectors if name in BIASES or name.endswith("bias")), None)
    if bias is None and len(vectors) > (0 if matrices else 1):
        bias = [*vectors][-1]
    gains = [array for name, array in vectors.items() if name != bias]
    found = {} if bias is None else {"bias": vectors[bias]}
    if len(matrices) == 1:
        found |= {"weight": matrices[0] if rows_in else matrices[0].T, "table": matrices[0]}
    return found | ({"gain": gains[0]} if len(gains) == 1 and not matrices else {})


def same_shape(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Of two arrays, or none on both sides."""
    return one is other if one is None or other is None else one.shape == other.shape


def rows_are_inputs(own: Parameters, inputs: list[np.ndarray], output: np.ndarray) -> bool:
    """Whether torch's module has the inputs of its matrix first, as GPT-2's Conv1D does: where it is square, its output
    tells."""
    roles = roles_of(own, rows_in=True)
    weight, bias = roles.get("weight"), roles.get("bias", 0.0)
    fitting = [x for x in inputs if weight is not None and x.ndim and x.shape[-1] == weight.shape[0]]
    if weight is None or not fitting:
        return False
    if weight.shape[0] != weight.shape[1]:
        return output.shape[-1:] == weight.shape[1:]
    return any(output.shape == x.shape and np.allclose(x @ weight + bias, output, rtol=0, atol=1e-9) for x in fitting)


def nearest_first(modules: Mapping[str, Parameters], path: str) -> dict[str, Parameters]:
    """Modules by their names in jax: by the last name what lies beside a module of this path, which comes first."""
    beside = f"{path.rpartition('.')[0]}."
    named = {owner.removeprefix(beside) if owner.startswith(beside) else owner: own for owner, own in modules.items()}
    return dict(sorted(named.items(), key=lambda item: item[0].count(".")))
