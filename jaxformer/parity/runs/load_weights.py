"""The JAX model with torch's weights, in the mode and precision of a comparison; and parameters that no output depends on."""

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
from jaxformer.parity.numerics.cast_on_use import casts_on_use
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.numerics.metrics import as_float64
from jaxformer.parity.pairing.draws import DrawPairs
from jaxformer.parity.pairing.placement import OneSided
from jaxformer.parity.pairing.tensors import Identified
from jaxformer.parity.trace.coverage import unread_by_torch
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.reference import Call, Reference, apply
from jaxformer.parity.trace.torch_hooks import Arrays
from jaxformer.pytree import is_weight, map_named
from jaxformer.runtime.xla_options import exact


def parted(tree: PyTree, constants: Container[str] = ()) -> tuple[PyTree, PyTree]:
    """Split a tree into one of the weights and one of all other arrays: keys, counts, and float `constants` by name.

    Each tree has None in place of the arrays of the other.
    """

    def part(floating: bool) -> PyTree:
        return map_named(lambda name, leaf: leaf if (is_weight(leaf) and name not in constants) == floating else None, tree)

    return part(True), part(False)


def joined(floats: PyTree, rest: PyTree) -> PyTree:
    """Join the two trees that `parted` made."""
    return jax.tree.map(lambda one, other: other if one is None else one, floats, rest, is_leaf=lambda leaf: leaf is None)


def load_jax(
    model: PyTree, weights: Mapping[str, np.ndarray], rules: Family, *, float64: bool, held: Container[str] = ()
) -> tuple[PyTree, PyTree]:
    """Load these weights into the model, in float64 if requested.

    Returns the parameters, and everything else including the arrays named in `held`; `joined` makes one tree of both.
    """
    loaded = to_jax(weights, model, rules)
    return parted(loaded64(weights, loaded, rules) if float64 else loaded, held)


def loaded64(weights: Mapping[str, np.ndarray], loaded: PyTree, rules: Family) -> PyTree:
    """Convert a model that holds these weights to float64; sums of weights are computed in float64 (needs
    `jax.enable_x64(True)`)."""
    model = to_float64(loaded)
    if casts_on_use() or not sums(loaded, rules):
        return model
    return to_jax({name: as_float64(array) for name, array in weights.items()}, model, rules)


def float64_run(
    model: PyTree, rules: Family, reference: Reference, call: Call
) -> tuple[PyTree, Callable[[PyTree], np.ndarray]]:
    """Return the model with torch's weights, and a function that runs it or a copy on torch's inputs; for use in
    `jax_float64`."""
    loaded = ready(loaded64(reference.weights, to_jax(reference.weights, model, rules), rules), training=False)
    inputs = inputs_float64(reference.inputs)
    compiled = jax.jit(lambda *given: side_by_side(call(*given)), compiler_options=exact())
    return loaded, lambda model: np.asarray(compiled(model, *inputs))


def ready(model: PyTree, *, training: bool) -> PyTree:
    """Put an NNX module in training or inference mode, in place. Other trees have no mode."""
    if isinstance(model, nnx.Module):
        model.train() if training else model.eval()
    return model


def has_shapes_alone(tree: PyTree) -> bool:
    """True if the model's weights are shapes without values."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) and is_weight(leaf) for leaf in jax.tree.leaves(tree))


def filled(tree: PyTree) -> PyTree:
    """Replace keys and counts that are shapes only, as `eval_shape` leaves them, by zeros: inference draws nothing."""

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
    """torch's buffers, by name, that the JAX model does not hold; its code may compute them."""
    alone: tuple[OneSided, ...] = ()
    """Parameters that only one side has."""
    draws: DrawPairs | None = None
    """Draws of both sides; None in inference mode."""
    statistics: Mapping[str, str] = field(default_factory=dict)
    """jax's running statistics -> torch's, in training mode."""

    def model(self, reference: Reference) -> PyTree:
        """The module with the reference's weights, in inference mode."""
        return ready(to_jax(reference.weights, self.like, self.family, keep=True), training=False)


def without_absent(reference: Reference, rules: Family) -> Reference:
    """The reference without the weights that the JAX model leaves out."""
    weights, gradients = (
        {name: array for name, array in arrays.items() if rules.why_ignored(name) is None}
        for arrays in (reference.weights, reference.gradients)
    )
    return replace(reference, weights=weights, gradients=gradients)


def with_idle(found: Identified, reference: Callable[[], Reference], call: Call) -> Identified:
    """Mark the one-sided parameters that nothing depends on as idle.

    A parameter is idle if torch's output gives it a gradient of exactly zero, or if its side's output does not change with NaN
    in its place. `reference` is called only if such parameters exist. Parameters of torch stay unmarked if the reference has no
    gradients of them and torch is not available.
    """
    open_ones = [each for each in found.alone if not each.is_neutral]
    if not open_ones:
        return found
    try:
        recorded = reference()
        names = {side: [each.name for each in open_ones if each.side == side] for side in ("jax", "torch")}
        unread = {*_unread(names["jax"], found, recorded, call)}
        idle = {name for name in names["torch"] if name in recorded.gradients and not recorded.gradients[name].any()}
        idle |= {*unread_by_torch([name for name in names["torch"] if name not in recorded.gradients], recorded)}
    except Exception:  # the run itself will report why
        return found

    def is_idle(each: OneSided) -> bool:
        return each.name in (unread if each.side == "jax" else idle)

    return replace(found, alone=tuple(replace(each, idle=not each.is_neutral and is_idle(each)) for each in found.alone))


def _unread(names: list[str], found: Identified, reference: Reference, call: Call) -> Iterator[str]:
    """Yield the JAX parameters in which NaN does not change the output."""
    if not names:
        return
    with jax_float64(Tables(found.tables)):
        model, run = float64_run(found.model, found.family, reference, call)
        usual = run(model)
        for name in names:
            blind = map_named(lambda at, leaf, name=name: jnp.full_like(leaf, jnp.nan) if at == name else leaf, model)
            if np.array_equal(usual, run(blind), equal_nan=True):
                yield name
