"""What a mutation does to the other arrays of the same call: jax has them too."""

from typing import NamedTuple

import numpy as np

from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import off
from jaxformer.parity.diagnose.trace import Rewrite
from jaxformer.parity.numerics.float_masks import one_number
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.trace.call_sites import ArrayKey, below


class Elsewhere(NamedTuple):
    """What becomes of them."""

    gives: frozenset[ArrayKey]
    """torch's places at which jax's arrays come."""
    contradicts: bool
    """Whether another array changes, and not into jax's: then the mutation is not what jax's code does."""


def cross_check(replay: Replay, proposal: Proposal, limit: float) -> Elsewhere:
    """Of all arrays that jax has too: of the code of the module that gives the array, or else of the whole call. Another layer
    may run the same line, and be right; but no other code may read the same weight or setting, and be right."""
    inside = proposal.edit()
    try:
        before, after = replay.everywhere(), replay.everywhere(inside)
    except Exception:  # a model refuses in its own ways: code behind the array may not go on with it
        return Elsewhere(frozenset({replay.place}), False)
    gives, contradicts = {replay.place}, False
    for place, array in before.items():
        jax = replay.compared[place]
        alike = jax.shape == array.shape and jax.dtype.kind == array.dtype.kind
        anothers = is_anothers(place, replay)
        if not alike or place == replay.place or place not in after or (anothers and isinstance(inside, Rewrite)):
            continue
        if is_jaxs(after[place], jax, limit):
            gives.add(place)
        elif off(after[place], array) > EXPLAINED and not (anothers and off(array, jax) > EXPLAINED):
            contradicts = True
    return Elsewhere(frozenset(gives), contradicts)


def is_anothers(place: ArrayKey, replay: Replay) -> bool:
    """Whether an array lies outside of the module inside of the call that gives the array."""
    module = replay.place.site
    inner = replay.place.part == "output" and module != replay.owner
    return inner and place.site != module and not below(place.site.path, module.path)


def is_jaxs(array: np.ndarray, jax: np.ndarray, limit: float) -> bool:
    """Whether an array is jax's; the numbers of masked entries may differ."""
    return off(one_number(array, jax, inside=True), jax) <= limit
