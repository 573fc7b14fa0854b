"""What torch's module had at hand when it made an array: the ground on which a cause is looked for."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from jaxformer.parity.capture.attention_calls import is_attention
from jaxformer.parity.capture.call_records import Trace
from jaxformer.parity.capture.call_sites import CALL, Site
from jaxformer.parity.capture.module_paths import below
from jaxformer.parity.explain.formulas import Evidence
from jaxformer.parity.numerics.float_masks import allowed, kind_of
from jaxformer.parity.run.isolated import Mismatch

Parameters = Mapping[str, np.ndarray]
BIASES = ("b", "b_2", "beta", "offset", "shift")
"""Other names of a bias in torch."""


def evidence(
    mismatch: Mismatch, theirs: Trace, pairs: Mapping[Site, Site], weights: Parameters, names: Mapping[str, str]
) -> Evidence:
    """Its inputs, its children's outputs so far, and its weights. `weights` are torch's by name, `names` leads from the torch
    modules that hold some to ours."""
    owner = pairs[mismatch.owner]
    calls = list(theirs)[: list(theirs).index(pairs[mismatch.child] if mismatch.child else owner)]
    calls = [site for site in calls if not is_attention(site, theirs[site])]
    inside = [site for site in calls if owner == CALL or (site.path != owner.path and below(site.path, owner.path))]
    children = [site for site in inside if not any(other != site and below(site.path, other.path) for other in inside)]
    given = theirs[owner].inputs
    floats = [array for array in given if np.issubdtype(array.dtype, np.floating) and not kind_of(array)]
    before = {f"input {i}" if i else "input": array for i, array in enumerate(floats)}
    for site in children:
        for array in theirs[site].output[:1]:
            if not any(np.array_equal(array, known) for known in before.values()):
                before[str(site).removeprefix(f"{owner.path}.")] = array
    masks = tuple(array if array.dtype == bool else allowed(array) for array in given if array.dtype == bool or kind_of(array))
    modules: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in weights.items():
        modules[name.rpartition(".")[0]][name.rpartition(".")[2]] = array
    rows_in = rows_are_inputs(modules.get(owner.path, {}), list(before.values()), mismatch.theirs)
    roles = {path: roles_of(own, rows_in=rows_in) for path, own in modules.items()}
    own, shown = roles.pop(owner.path, {}), {names.get(path, path): each for path, each in roles.items()}
    return Evidence(before, masks, own, nearest_first(shown, mismatch.owner.path))


def roles_of(own: Parameters, *, rows_in: bool) -> dict[str, np.ndarray]:
    """What a torch module's own tensors are, told by torch's names and axes: a gain 'scale' and a 'bias' of one axis, or a
    'kernel' with its inputs first, which may be a 'table' too, and its bias. `rows_in` if torch holds it so already."""
    vectors = {name: array for name, array in own.items() if array.ndim == 1}
    matrices = [array for array in own.values() if array.ndim == 2]
    bias = next((name for name in vectors if name in BIASES or name.endswith("bias")), None)
    if bias is None and len(vectors) > (0 if matrices else 1):
        bias = [*vectors][-1]
    gains = [array for name, array in vectors.items() if name != bias]
    found = {} if bias is None else {"bias": vectors[bias]}
    if len(matrices) == 1:
        found |= {"kernel": matrices[0] if rows_in else matrices[0].T, "table": matrices[0]}
    return found | ({"scale": gains[0]} if len(gains) == 1 and not matrices else {})


def rows_are_inputs(own: Parameters, inputs: list[np.ndarray], output: np.ndarray) -> bool:
    """Whether torch's module holds its matrix with the inputs first, as GPT-2's Conv1D does: where it is square, its output
    tells."""
    roles = roles_of(own, rows_in=True)
    kernel, bias = roles.get("kernel"), roles.get("bias", 0.0)
    fitting = [x for x in inputs if kernel is not None and x.ndim and x.shape[-1] == kernel.shape[0]]
    if kernel is None or not fitting:
        return False
    if kernel.shape[0] != kernel.shape[1]:
        return output.shape[-1:] == kernel.shape[1:]
    return any(output.shape == x.shape and np.allclose(x @ kernel + bias, output, rtol=0, atol=1e-9) for x in fitting)


def nearest_first(modules: Mapping[str, Parameters], path: str) -> dict[str, Parameters]:
    """What lies beside a module of ours goes by its last name."""
    beside = f"{path.rpartition('.')[0]}."
    named = {owner.removeprefix(beside) if owner.startswith(beside) else owner: own for owner, own in modules.items()}
    return dict(sorted(named.items(), key=lambda item: item[0].count(".")))
