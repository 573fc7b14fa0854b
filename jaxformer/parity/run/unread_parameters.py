"""Parameters of one side on which nothing that is compared depends, as a pooler beside the logits: no port needs them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.convert.rules import to_jax
from jaxformer.parity.match.tensors import Identified
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import cast, jax_float64, to_float64
from jaxformer.parity.record.reference import Call, Reference
from jaxformer.parity.run.load_weights import ready
from jaxformer.pytree import map_named


def with_idle(found: Identified, reference: Callable[[], Reference], call: Call) -> Identified:
    """The same with those marked: torch's output gives them no gradient at all, or JAX's is the same with NaN in their place.
    `reference` is asked for only where one side has some; where it holds no gradients, torch's stay unmarked."""
    open_ones = [each for each in found.alone if not each.is_neutral]
    if not open_ones:
        return found
    try:
        said = reference()
        idle = {each.key for each in open_ones if each.side == "torch" and not said.gradients.get(each.name, np.ones(1)).any()}
        own = [each.name for each in open_ones if each.side == "jax"]
        idle |= {each.key for each in open_ones if each.side == "jax" and each.name in {*_unread(own, found, said, call)}}
    except Exception:  # the run itself will tell why
        return found
    return replace(found, alone=tuple(replace(each, idle=each.key in idle) for each in found.alone))


def _unread(names: list[str], found: Identified, reference: Reference, call: Call) -> Iterator[str]:
    """Of these JAX parameters, those in which NaN does not change the output."""
    if not names:
        return
    with jax_float64(Tables(found.tables)):
        model = ready(to_float64(to_jax(reference.weights, found.model, found.family)), training=False)
        inputs = cast(list(map(jnp.asarray, reference.inputs)), jnp.float64)
        run = jax.jit(lambda *given: call(*given))
        usual = np.asarray(run(model, *inputs))
        for name in names:
            blind = map_named(lambda at, leaf, name=name: jnp.full_like(leaf, jnp.nan) if at == name else leaf, model)
            if np.array_equal(usual, np.asarray(run(blind, *inputs)), equal_nan=True):
                yield name
