"""What torch's module had at hand when it made an array: the ground on which a cause is looked for."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from jaxformer.parity.float_masks import allowed, kind_of
from jaxformer.parity.hypotheses import Evidence
from jaxformer.parity.isolate import Gap
from jaxformer.parity.pairing import below
from jaxformer.parity.records import Trace
from jaxformer.parity.seen import is_seen
from jaxformer.parity.watch import CALL, Site

Parameters = Mapping[str, np.ndarray]


def evidence(gap: Gap, theirs: Trace, pairs: Mapping[Site, Site], parameters: Mapping[str, np.ndarray]) -> Evidence:
    """Its inputs, its children's outputs so far, and its weights."""
    owner = pairs[gap.owner]
    calls = list(theirs)[: list(theirs).index(pairs[gap.child] if gap.child else owner)]
    calls = [site for site in calls if not is_seen(site, theirs[site])]
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
    return Evidence(before, masks, *own_and_others(parameters, gap.owner.path))


def own_and_others(parameters: Mapping[str, np.ndarray], path: str) -> tuple[Parameters, dict[str, Parameters]]:
    """The weights of a module by their last names, and those of all others; what lies beside it goes by its last name."""
    modules: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in parameters.items():
        owner, _, last = name.rpartition(".")
        modules[owner][last] = array
    beside = f"{path.rpartition('.')[0]}."
    others = {owner.removeprefix(beside) if owner.startswith(beside) else owner: own for owner, own in modules.items()}
    others.pop(path.removeprefix(beside), None)
    return modules.get(path, {}), dict(sorted(others.items(), key=lambda item: item[0].count(".")))
