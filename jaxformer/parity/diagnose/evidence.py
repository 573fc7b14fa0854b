"""Inputs, parameters and intermediate values that a torch module had when it made an array: the evidence for a cause.

All are torch's, so that a cause does not depend on the names in a JAX model."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.parity.diagnose.replays import backward_of, replay_of_values, replays_of_mismatch
from jaxformer.parity.numerics.float_masks import allowed, kind_of
from jaxformer.parity.numerics.metrics import EXPLAINED, as_float64, distance
from jaxformer.parity.runs.gradients_of_weights import of_own_weights
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.session import Session
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_records import Trace, is_attention, scores_of
from jaxformer.parity.trace.call_sites import ATTENTION, CALL, Site, below, last, parent

if TYPE_CHECKING:
    from jaxformer.parity.diagnose.backward import Backward
    from jaxformer.parity.diagnose.replay import Replay


Parameters = Mapping[str, np.ndarray]
BIASES = ("b", "b_2", "beta", "offset", "shift")
"""Names of a bias in torch, beside those that end with 'bias'."""
SCORES, WEIGHTS = ATTENTION
STATISTIC, OLD = "statistic", "old"
"""Names of a running statistic after a call in training mode, and before it."""


@dataclass(frozen=True)
class Evidence:
    """Arrays that a torch module had when it made an array."""

    before: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Float inputs as 'input', 'input 1', ..., and the outputs of the module's children so far, by their names."""
    ids: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Integer inputs as 'ids', 'ids 1', ..., and those of the whole call."""
    masks: Sequence[np.ndarray] = ()
    """Masks among the inputs, as booleans."""
    parameters: Parameters = field(default_factory=dict)
    """Parameters of the module by their roles: 'gain', 'bias', 'weight' (inputs first), 'table'."""
    others: Mapping[str, Parameters] = field(default_factory=dict)
    """Parameters of every other module, in float32: a sibling's by its name, another one's by its path."""
    scores: Sequence[np.ndarray] = ()
    """Attention scores `B N T S` that were made inside the module so far."""
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Float buffers of the module."""
    later: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Outputs of the module's children that run after that, by their names."""


@dataclass(frozen=True)
class Difference:
    """Array that differs: jax's, with torch's axes, and torch's; and the evidence for a cause."""

    jax: np.ndarray
    torch: np.ndarray
    kind: str = "value"
    """Kind of the array: 'value', 'scores' or 'weights' (of attention), 'statistic' (a running statistic), 'gradient', or
    'gradients': the gradient of one of several weights that differ."""
    evidence: Evidence = field(default_factory=Evidence)
    what: str = ""
    """Name of a gradient."""
    forced: bool = False
    """True if jax computed its attention weights from torch's scores."""
    session: Session = field(default_factory=Session)
    """State that searches of one comparison share: the budget, and what explained other modules."""
    replays: Callable[[], Iterator["Replay"]] = lambda: iter(())
    """Function that gives replays of torch's calls that may have made the array, the likely one first; none without torch's
    model."""
    backward: "Callable[[], Backward | None]" = lambda: None
    """Function that gives the replay of the backward pass, if the array is a gradient; None without torch's model."""
    values: Callable[[], "Replay | None"] = lambda: None
    """Function that gives the replay of the call's values, if the array is a gradient; None without torch's model."""
    padded: bool = False
    """True if an embedding of torch's has a `padding_idx`."""
    normal: np.ndarray | None = None
    """jax's array in the normal run, with jax's axes, if it is an output."""

    @cached_property
    def made(self) -> Evidence:
        """Evidence without torch's array itself, which a module may have passed on unchanged."""
        before = {name: array for name, array in self.evidence.before.items() if not np.array_equal(array, self.torch)}
        return replace(self.evidence, before=before)


def difference_of(traced: Traced, mismatch: Mismatch, *, gradient: bool, near: bool = False) -> Difference:
    """Collect the evidence for a mismatch. `gradient`: its arrays are gradients. `near`: leave out the replay of the widest
    call, whose code reaches back before other taps."""
    both, owner, calls = (mismatch.jax, mismatch.torch), traced.pairs[mismatch.owner], traced.reference.calls
    if gradient:
        backward, kind = partial(backward_of, traced, mismatch), "gradients" if several_differ(traced, mismatch) else "gradient"
        values = partial(replay_of_values, traced, owner)
        difference = Difference(*both, kind, what=mismatch.what, session=traced.session, backward=backward, values=values)
        return replace(difference, padded=bool(traced.reference.padding))
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
    """Return jax's array of the normal run, if it is an output; else None."""
    if mismatch.place is None or mismatch.place.part != "output":
        return None
    arrays = traced.normal_run.outputs.get(mismatch.place.site, ())
    return arrays[mismatch.place.number] if mismatch.place.number < len(arrays) else None


def several_differ(traced: Traced, mismatch: Mismatch) -> bool:
    """True if a mismatch is a weight's gradient, and the gradients of several weights of the call differ."""
    if mismatch.place is not None:
        return False
    jax, torch = of_own_weights(traced, mismatch.owner)
    return sum(distance(jax[name], torch[name]) > EXPLAINED for name in torch) > 1


def evidence_of(traced: Traced, mismatch: Mismatch) -> Evidence:
    """Collect the inputs of torch's module, the outputs of its children so far, and the parameters."""
    owner, calls = traced.pairs[mismatch.owner], traced.reference.calls
    until = list(calls).index(traced.pairs[mismatch.child] if mismatch.child else owner)
    inside = [site for site in list(calls)[:until] if owner == CALL or below(site.path, owner.path)]
    given = calls[owner].inputs
    before = arrays_before(owner, inside, calls)
    every = [site for site in calls if site != owner and (owner == CALL or below(site.path, owner.path))]
    later = {name: array for name, array in arrays_before(owner, every, calls).items() if name not in before}
    masks = tuple(array if array.dtype == bool else allowed(array) for array in given if array.dtype == bool or kind_of(array))
    modules: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in traced.reference.by_all_names.items():
        modules[parent(name)][last(name)] = as_float64(array) if parent(name) == owner.path else array
    rows_in = rows_are_inputs(modules.get(owner.path, {}), list(before.values()), mismatch.torch)
    roles = {path: roles_of(own, rows_in=rows_in) for path, own in modules.items()}
    own, shown = roles.pop(owner.path, {}), {traced.names.get(path, path): each for path, each in roles.items()}
    softmaxes = [site for site in inside if is_attention(site, calls[site]) and last(site.path) == SCORES]
    scores = [calls[site].output[0] for site in softmaxes]
    ids = {f"ids {i}" if i else "ids": array for i, array in enumerate(each for each in given if each.dtype.kind in "iu")}
    ids |= {f"input {i} of the call": array for i, array in enumerate(traced.reference.inputs) if array.dtype.kind in "iu"}
    held = {last(name): as_float64(array) for name, array in traced.reference.buffers.items() if parent(name) == owner.path}
    return Evidence(before, ids, masks, own, nearest_first(shown, mismatch.owner.path), scores, held, later)


def arrays_before(owner: Site, inside: list[Site], calls: Trace) -> dict[str, np.ndarray]:
    """Return the float inputs of torch's module, and the first outputs of its outermost calls among `inside`, by name."""
    floats = [array for array in calls[owner].inputs if np.issubdtype(array.dtype, np.floating) and not kind_of(array)]
    before = {f"input {i}" if i else "input": array for i, array in enumerate(floats)}
    modules = [site for site in inside if not is_attention(site, calls[site]) and (owner == CALL or site.path != owner.path)]
    children = [site for site in modules if not any(other != site and below(site.path, other.path) for other in modules)]
    for site in children:
        for array in calls[site].output[:1]:
            if not any(np.array_equal(array, known) for known in before.values()):
                before[str(site).removeprefix(f"{owner.path}.") if site.path else "the model's output"] = array
    return before


def roles_of(own: Parameters, *, rows_in: bool) -> dict[str, np.ndarray]:
    """Assign roles to a torch module's own tensors, by their names and axes.

    Vectors are 'gain' and 'bias'; a single matrix is both 'weight' (inputs first) and 'table'. `rows_in`: torch's matrix has
    its inputs first already.
    """
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
    """True if two arrays have the same shape, or if both are None."""
    return one is other if one is None or other is None else one.shape == other.shape


def rows_are_inputs(own: Parameters, inputs: list[np.ndarray], output: np.ndarray) -> bool:
    """True if the matrix of torch's module has its inputs first, as GPT-2's Conv1D does. For a square matrix, the module's
    output decides."""
    roles = roles_of(own, rows_in=True)
    weight, bias = roles.get("weight"), roles.get("bias", 0.0)
    fitting = [x for x in inputs if weight is not None and x.ndim and x.shape[-1] == weight.shape[0]]
    if weight is None or not fitting:
        return False
    if weight.shape[0] != weight.shape[1]:
        return output.shape[-1:] == weight.shape[1:]
    return any(output.shape == x.shape and np.allclose(x @ weight + bias, output, rtol=0, atol=1e-9) for x in fitting)


def nearest_first(modules: Mapping[str, Parameters], path: str) -> dict[str, Parameters]:
    """Sort modules by depth of their names in jax, siblings of the module at `path` by their last name alone."""
    beside = f"{path.rpartition('.')[0]}."
    named = {owner.removeprefix(beside) if owner.startswith(beside) else owner: own for owner, own in modules.items()}
    return dict(sorted(named.items(), key=lambda item: item[0].count(".")))
