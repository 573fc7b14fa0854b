"""Cross-check: the effect of a mutation on every other array of the same call that jax has too."""

from typing import NamedTuple

from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import off
from jaxformer.parity.diagnose.trace import Rewrite
from jaxformer.parity.numerics.float_masks import one_number
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.trace.call_sites import ArrayKey, below


class Elsewhere(NamedTuple):
    """Result of a cross-check."""

    gives: frozenset[ArrayKey]
    """torch's places at which the mutation gives jax's array, and torch's code does not."""
    contradicts: bool
    """True if another array changes into something that is not jax's: then the mutation is not what jax's code does."""


def cross_check(replay: Replay, proposal: Proposal, limit: float) -> Elsewhere:
    """Replay the call to its end with a mutation, and compare every array that jax has too; `limit` is the largest residual.

    A mutated operation that runs several times is checked on the code of the module that makes the array, since another layer
    may run the same line and be right. One that runs once, a mutated weight or a setting is checked on the whole call, since no
    other code may read it and be right.
    """
    inside = proposal.edit()
    try:
        before, after = replay.everywhere(), replay.everywhere(inside)
    except Exception:  # any error of the model's code: code after the array may not work with the mutated array
        return Elsewhere(frozenset({replay.place}), False)
    gives, contradicts = {replay.place}, False
    often = isinstance(inside, Rewrite) and any(count > 1 for count in inside.runs.values())
    for place, array in before.items():
        jax = replay.compared[place]
        alike = jax.shape == array.shape and jax.dtype.kind == array.dtype.kind
        anothers = is_anothers(place, replay)
        if not alike or place == replay.place or place not in after or (anothers and often):
            continue
        if off(one_number(after[place], jax, inside=True), jax) <= limit:  # masked entries may hold other numbers
            gives |= {place} if off(array, jax) > EXPLAINED else set()
        elif off(after[place], array) > EXPLAINED and not (anothers and off(array, jax) > EXPLAINED):
            contradicts = True
    return Elsewhere(frozenset(gives), contradicts)


def is_anothers(place: ArrayKey, replay: Replay) -> bool:
    """True if an array lies outside the module that makes the replayed array, where that is a module inside the call."""
    module = replay.place.site
    inner = replay.place.part == "output" and module != replay.owner
    return inner and place.site != module and not below(place.site.path, module.path)
