"""JAX model with torch's weights, in the mode and precision of a comparison, and its parameters that no output depends on."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family, sums, to_jax
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.numerics.metrics import as_float64
from jaxformer.parity.pairing.draws import DrawPairs
from jaxformer.parity.pairing.placement import OneSided
from jaxformer.parity.pairing.tensors import Identified
from jaxformer.parity.trace.coverage import unread_by_torch
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.recorder import Arrays
from jaxformer.parity.trace.reference import Call, Reference, apply
from jaxformer.pytree import is_weight, map_named
from jaxformer.runtime.xla_options import exact


def parted(tree: PyTree, constants: Container[str] = ()) -> tuple[PyTree, PyTree]:
    """A tree of the weights, and one of all other arrays: keys, counts, and float `constants` by name. None stands in each for
    what is in the other."""

    def part(floating: bool) -> PyTree:
        return map_named(lambda name, leaf: leaf if (is_weight(leaf) and name not in constants) == floating else None, tree)

    return part(True), part(False)


def joined(floats: PyTree, rest: PyTree) -> PyTree:
    """The tree that was parted."""
    return jax.tree.map(lambda one, other: other if one is None else one, floats, rest, is_leaf=lambda leaf: leaf is None)


def load_jax(
    model: PyTree, weights: Mapping[str, np.ndarray], rules: Family, *, float64: bool, held: Container[str] = ()
) -> tuple[PyTree, PyTree]:
    """The model with these weights, in float64 if asked for: its parameters, and everything else, also what is `held` fixed;
    `joined` makes one tree of both."""
    loaded = to_jax(weights, model, rules)
    return parted(loaded64(weights, loaded, rules) if float64 else loaded, held)


def loaded64(weights: Mapping[str, np.ndarray], loaded: PyTree, rules: Family) -> PyTree:
    """A model that holds these weights, in float64: what is added up is so there (under `jax.enable_x64(True)`)."""
    model = to_float64(loaded)
    return to_jax({name: as_float64(array) for name, array in weights.items()}, model, rules) if sums(loaded, rules) else model


def float64_run(
    model: PyTree, rules: Family, reference: Reference, call: Call
) -> tuple[PyTree, Callable[[PyTree], np.ndarray]]:
    """The model with torch's weights, and a function that runs it, or a copy, on torch's inputs; for use in `jax_float64`."""
    loaded = ready(loaded64(reference.weights, to_jax(reference.weights, model, rules), rules), training=False)
    inputs = inputs_float64(reference.inputs)
    compiled = jax.jit(lambda *given: side_by_side(call(*given)), compiler_options=exact())
    return loaded, lambda model: np.asarray(compiled(model, *inputs))


def ready(model: PyTree, *, training: bool) -> PyTree:
    """An NNX module in training or inference mode, in place. Other trees have no mode."""
    if isinstance(model, nnx.Module):
        model.train() if training else model.eval()
    return model


def has_shapes_alone(tree: PyTree) -> bool:
    """Whether a model's weights are shapes without values."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) and is_weight(leaf) for leaf in jax.tree.leaves(tree))


def filled(tree: PyTree) -> PyTree:
    """The model with zeros for keys and counts that are shapes alone, as `eval_shape` leaves them: inference draws nothing."""

    def fill(leaf: Any) -> Any:
        empty = isinstance(leaf, jax.ShapeDtypeStruct) and not is_weight(leaf)
        return jnp.zeros(leaf.shape, leaf.dtype) if empty else leaf

    return jax.tree.map(fill, tree)


@dataclass(frozen=True)
class Candidate:
    """The JAX side: a module, possibly abstract, whose weights come from the reference."""

    like: PyTree
    call: Call = apply
    family: Family = TWIN
    tables: Arrays = field(default_factory=dict)
    """torch's buffers that the JAX model holds none of, by name: its code may compute them."""
    alone: tuple[OneSided, ...] = ()
    """Parameters that one side does not have."""
    draws: DrawPairs | None = None
    """In training mode: what both sides draw."""
    statistics: Mapping[str, str] = field(default_factory=dict)
    """In training mode: jax's running statistics -> torch's."""

    def model(self, reference: Reference) -> PyTree:
        """The module with the reference's weights, in inference mode."""
        return ready(to_jax(reference.weights, self.like, self.family), training=False)


def without_absent(reference: Reference, rules: Family) -> Reference:
    """The reference without the weights that the JAX model leaves out."""
    weights, gradients = (
        {name: array for name, array in arrays.items() if rules.why_ignored(name) is None}
        for arrays in (reference.weights, reference.gradients)
    )
    return replace(reference, weights=weights, gradients=gradients)


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
