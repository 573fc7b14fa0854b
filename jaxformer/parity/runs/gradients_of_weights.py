"""Gradients of weights, each from the code of the module that owns the weight."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, gradients_to_torch, sums, to_jax
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import EXACT, NULL_GRADIENT, Error, error, rms
from jaxformer.parity.pairing.modules import layer_arrays
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, parameters_of

Arrays = Mapping[str, np.ndarray]
"""Arrays by names of JAX parameters, layer by layer."""


def weight_gradients(traced: Traced, ours: Arrays) -> list[tuple[Error, Mismatch]]:
    """Compare `ours`, jax's gradients of weights, with torch's.

    The owner of each is the innermost call around the parameter whose output is replaced by torch's array: the code up to there
    gets torch's gradient.
    """
    noise = NULL_GRADIENT * rms(gradients_of_weights(traced).values())
    names, owner = traced.parameters, owners(traced)
    mismatches = []
    for name, array in in_layers(traced, gradients_of_weights(traced)).items() if ours else ():
        if names.get(name) in traced.reference.frozen:
            continue
        mismatch = Mismatch(owner.get(name, CALL), None, f"gradient of {name}", ours[name], array)
        moved = traced.rounding_of(mismatch.owner).get(ArrayKey.gradient(names.get(name, name)), EXACT)
        mismatches.append((error(mismatch.jax, mismatch.torch, noise, moved), mismatch))
    return mismatches


def owners(traced: Traced) -> dict[str, Site]:
    """Innermost call around each JAX parameter whose output is replaced by torch's array, if there is one."""
    seen = (site for site in traced.pairs if site != CALL and site not in traced.unfit)
    sites = sorted(seen, key=lambda site: len(site.path))
    first = [site for site in sites if site.call == min(each.call for each in sites if each.path == site.path)]
    return {name: site for site in first for name in parameters_of(site.path, traced.parameters)}


def of_own_weights(traced: Traced, site: Site) -> tuple[Arrays, Arrays]:
    """jax's and torch's gradients of the weights that only this call owns, each from the owner's code; by torch's names."""
    owner, own, others = owners(traced), set[str](), set[str]()
    for ours, theirs in traced.parameters.items():
        (own if owner.get(ours, CALL) == site else others).add(theirs)
    found = gradients_to_torch(traced.isolated.weights, traced.rules, traced.reference.weights)
    torchs = {name: array for name, array in gradients_of_weights(traced).items() if name in own - others}
    return {name: found[name] for name in torchs}, torchs


def own_gradients(traced: Traced, weights: Any) -> Arrays:
    """jax's gradients from a tree of the model's shape, those of tied weights added up; empty if the tree is None."""
    if weights is None:
        return {}
    if traced.rules.tied:
        with jax.enable_x64(True):
            found = gradients_to_torch(weights, traced.rules, gradients_of_weights(traced))
            weights = gradients_to_jax(found, weights, traced.rules)
    return layer_arrays(weights, traced.rules, traced.stacks)


def in_layers(traced: Traced, gradients: Arrays) -> Arrays:
    """torch's gradients, by torch's names, as jax's arrays layer by layer; 0 where torch has none."""
    still = {name: np.zeros_like(array, np.float64) for name, array in traced.reference.weights.items()}
    found = {name: gradients.get(name, array) for name, array in still.items()}
    with jax.enable_x64(True):
        return layer_arrays(gradients_to_jax(found, to_float64(traced.model), traced.rules), traced.rules, traced.stacks)


def gradients_to_jax(gradients: Arrays, like: PyTree, family: Family) -> PyTree:
    """torch's gradients as a tree of the shape of `like`; the gradient of a sum is that of each of its trained terms."""
    only = dict(gradients)
    for names in {*sums(like, family).values()}:
        first = next((name for name in names if gradients[name].any()), names[0])
        only |= {name: np.zeros_like(gradients[name]) for name in names if name != first}
    return to_jax(only, like, family)


def gradients_of_weights(traced: Traced) -> Arrays:
    """torch's gradients of weights, by torch's names."""
    return {name: array for name, array in traced.reference.gradients.items() if name in traced.reference.weights}
