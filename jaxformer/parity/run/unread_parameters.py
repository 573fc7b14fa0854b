"""Parameters of one side on which nothing that is compared depends, as a pooler beside the logits: no port needs them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.match.one_sided import OneSided
from jaxformer.parity.match.tensors import Identified
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.record.reference import Call, Reference
from jaxformer.parity.record.unread import unread_by_torch
from jaxformer.parity.run.load_weights import float64_run
from jaxformer.pytree import map_named


def with_idle(found: Identified, reference: Callable[[], Reference], call: Call) -> Identified:
    """The same with those marked: torch's output gives them no gradient at all, or the output of their side stays as it is with
    NaN in their place. `reference` is asked for only where one side has some; torch's stay unmarked where it holds no gradients
    of them, and torch is not at hand."""
    open_ones = [each for each in found.alone if not each.is_neutral]
    if not open_ones:
        return found
    try:
        recorded = reference()
        names = {side: [each.name for each in open_ones if each.side == side] for side in ("jax", "torch")}
        unread = {*_unread(names["jax"], found, recorded, call)}
        idle = {name for name in names["torch"] if name in recorded.gradients and not recorded.gradients[name].any()}
        idle |= {*unread_by_torch([name for name in names["torch"] if name not in recorded.gradients], recorded)}
    except Exception:  # the run itself will tell why
        return found

    def is_idle(each: OneSided) -> bool:
        return each.name in (unread if each.side == "jax" else idle)

    return replace(found, alone=tuple(replace(each, idle=not each.is_neutral and is_idle(each)) for each in found.alone))


def _unread(names: list[str], found: Identified, reference: Reference, call: Call) -> Iterator[str]:
    """Of these JAX parameters, those in which NaN does not change the output."""
    if not names:
        return
    with jax_float64(Tables(found.tables)):
        model, run = float64_run(found.model, found.family, reference, call)
        usual = run(model)
        for name in names:
            blind = map_named(lambda at, leaf, name=name: jnp.full_like(leaf, jnp.nan) if at == name else leaf, model)
            if np.array_equal(usual, run(blind), equal_nan=True):
                yield name
