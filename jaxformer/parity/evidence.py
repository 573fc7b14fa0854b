"""What torch's module had at hand when it made an array: the ground on which a cause is looked for."""

from collections.abc import Mapping

import numpy as np

from jaxformer.parity.causes import Evidence
from jaxformer.parity.isolate import Gap
from jaxformer.parity.pairing import below
from jaxformer.parity.records import Trace
from jaxformer.parity.watch import CALL, Site


def evidence(gap: Gap, theirs: Trace, pairs: Mapping[Site, Site], parameters: Mapping[str, np.ndarray]) -> Evidence:
    """Its inputs, its children's outputs so far, its weights; whatever passed the array on unchanged is left out."""
    owner = pairs[gap.owner]
    calls = list(theirs)[: list(theirs).index(pairs[gap.child] if gap.child else owner)]
    inside = [site for site in calls if owner == CALL or (site.path != owner.path and below(site.path, owner.path))]
    children = [site for site in inside if not any(other != site and below(site.path, other.path) for other in inside)]
    given = theirs[owner].inputs
    floats = [array for array in given if np.issubdtype(array.dtype, np.floating)]
    before = {f"input {i}" if i else "input": array for i, array in enumerate(floats)}
    for site in children:
        for array in theirs[site].output[:1]:
            if not any(np.array_equal(array, known) for known in before.values()):
                before[str(site).removeprefix(f"{owner.path}.")] = array
    if owner != CALL:
        before = {name: array for name, array in before.items() if not np.array_equal(array, gap.theirs)}
    masks = tuple(array for array in given if array.dtype == bool)
    return Evidence(before, masks, own_parameters(parameters, gap.owner.path), sibling_parameters(parameters, gap.owner.path))


def own_parameters(parameters: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Those of a module itself, by their last names."""
    prefix = f"{path}." if path else ""
    own = {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}
    return {name: array for name, array in own.items() if "." not in name}


def sibling_parameters(parameters: Mapping[str, np.ndarray], path: str) -> dict[str, dict[str, np.ndarray]]:
    """Those of the modules that lie beside it, by their names."""
    parent, _, last = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    names = {name.removeprefix(prefix).split(".")[0] for name in parameters if name.startswith(prefix)} - {last}
    return {name: own_parameters(parameters, prefix + name) for name in sorted(names)}
