"""What a module only hands on: it has it of one call inside, where the difference is made, and gives it to the next."""

from collections.abc import Collection, Iterable

import numpy as np

from jaxformer.parity.capture.call_sites import CALL, Site
from jaxformer.parity.capture.module_paths import below
from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced


def is_handed_on(traced: Traced, mismatch: Mismatch, wrong: Collection[Site]) -> bool:
    """Whether jax's array is what another call gave along the normal run, in which one of the `wrong` ones is: they own the
    differences. torch's is so too, or it is a mask, which torch hands to every block."""
    if mismatch.child is None or not mismatch.torch.ndim:
        return False
    is_mask = mismatch.torch.dtype == bool or bool(kind_of(mismatch.torch))
    for site, other in traced.pairs.items():
        inside = any(below(owner.path, site.path) for owner in wrong if owner != mismatch.owner)
        if inside and site not in (CALL, mismatch.owner, mismatch.child):
            theirs = is_mask or holds(traced.reference.calls[other].output, mismatch.torch)
            if theirs and holds(traced.normal_run.outputs.get(site, ()), mismatch.jax):
                return True
    return False


def holds(arrays: Iterable[np.ndarray], wanted: np.ndarray) -> bool:
    """Whether one of them has the same numbers."""
    return any(np.array_equal(array, wanted) for array in arrays)
