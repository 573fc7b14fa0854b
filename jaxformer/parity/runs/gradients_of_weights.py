"""Gradients of weights, each from the code of the module that owns the weight; and torch's gradients from some of its calls
alone, back to arrays that were given or computed before these calls."""

import copy
from collections.abc import Callable, Container, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, gradients_to_torch, sums, to_jax
from jaxformer.parity.numerics.axis_order import part_of
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import EXACT, NULL_GRADIENT, Error, error, host, over, rms
from jaxformer.parity.pairing.modules import layer_arrays
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_records import Trace, arrays_in, replaced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, parameters_of
from jaxformer.parity.trace.reference import Reference, tensors_of
from jaxformer.parity.trace.torch_hooks import thawed, watch_torch
from jaxformer.pytree import is_weight


def gradients_from(
    reference: Reference, sending: Container[ArrayKey], cut: Container[ArrayKey]
) -> dict[str, np.ndarray] | None:
    """Return the gradients of weights by name, if the arrays `sending` have the recorded gradients, and none passes the arrays
    `cut`.

    None if torch's model is not available.
    """
    import torch

    if (source := reference.source) is None:
        return None
    model, tensors = thawed(copy.deepcopy(source.module).double()).eval(), tensors_of(reference.inputs, torch.float64)
    observer = Cut(reference.calls, sending, cut)
    with torch.enable_grad(), torch_float64():
        with watch_torch(model, observer):
            output = source.call(model, *tensors)
        observer.leave(CALL, output)
        leaves = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        found = torch.autograd.grad(observer.total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, map(host, found), strict=True))


class Cut:
    """Observer that sums what is sent back, and detaches the arrays that gradients do not pass."""

    def __init__(self, calls: Trace, sending: Container[ArrayKey], cut: Container[ArrayKey]):
        import torch

        self.calls, self.sending, self.cut = calls, sending, cut
        self.total: Any = torch.zeros((), dtype=torch.float64, requires_grad=True)
        """Scalar whose gradient is what is sent back; integers and running statistics send nothing."""
        self.leaves: dict[ArrayKey, Any] = {}
        """Float tensors that replace the arrays that are cut."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._seen(site, "inputs", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._seen(site, "output", output)

    def _seen(self, site: Site, part: str, value: Any) -> Any:
        import torch

        arrays, record = arrays_in(value), self.calls.get(site)
        places = [ArrayKey(site, part, i) for i in range(len(arrays))]
        gradients = getattr(record, f"{part.removesuffix('s')}_gradients", ())
        with torch._C.DisableTorchFunction():  # not part of the model's code
            for array, place, gradient, recorded in zip(arrays, places, gradients, getattr(record, part, ()), strict=False):
                if place in self.sending and gradient is not None:
                    compared = array[part_of(host(array), recorded)]
                    self.total = self.total + (compared * torch.from_numpy(gradient)).sum()
            both = list(zip(places, arrays, strict=True))
            leaves = {
                place: array.detach().requires_grad_(array.is_floating_point()) for place, array in both if place in self.cut
            }
            goes_on = {place: leaf.clone() for place, leaf in leaves.items()}  # since the model's code may work in place
        self.leaves |= leaves
        return replaced(value, arrays, [goes_on.get(place, array) for place, array in both])


EMPTY = np.zeros(0)
Arrays = Mapping[str, np.ndarray]
"""Arrays by names of JAX parameters, layer by layer."""


def weight_gradients(traced: Traced, ours: Arrays) -> list[tuple[Error, Mismatch]]:
    """Compare `ours`, jax's gradients of weights, with torch's.

    The owner of each is the innermost call around the parameter whose output is replaced by torch's array: the code up to there
    gets torch's gradient. Arrays that are equal are left out, so that a large model's gradients are not held twice.
    """
    noise = NULL_GRADIENT * rms(traced.reference.gradients[name] for name in gradients_of_weights(traced))
    names, owner, more = traced.parameters, owners(traced), called_more_often(traced)
    mismatches = []
    for name, array in in_layers(traced, gradients_of_weights(traced)).items() if ours else ():
        site = owner.get(name, CALL)
        if names.get(name) in traced.reference.frozen or site in more:
            continue
        moved = traced.rounding_of(site).get(ArrayKey.gradient(names.get(name, name)), EXACT)
        found = error(ours[name], array, noise, moved)
        both = (ours[name].copy(), array.copy()) if over(found, "gradient") else (EMPTY, EMPTY)
        mismatches.append((found, Mismatch(site, None, f"gradient of {name}", *both)))
    return mismatches


def owners(traced: Traced) -> dict[str, Site]:
    """Innermost call around each JAX parameter whose output is replaced by torch's array, if there is one."""
    seen = (site for site in traced.pairs if site != CALL and site not in traced.unfit)
    sites = sorted(seen, key=lambda site: len(site.path))
    first = [site for site in sites if site.call == min(each.call for each in sites if each.path == site.path)]
    return {name: site for site in first for name in parameters_of(site.path, traced.parameters)}


def called_more_often(traced: Traced) -> set[Site]:
    """Calls of modules that torch calls more often than jax: torch's gradients are those of all its calls."""
    left = {site.path for site in traced.reference.calls.keys() - {*traced.pairs.values()}}
    return {site for site, other in traced.pairs.items() if site != CALL and other.path in left}


def of_own_weights(traced: Traced, site: Site) -> tuple[Arrays, Arrays]:
    """jax's and torch's gradients of the weights that only this call owns, each from the owner's code; by torch's names."""
    owner, own, others = owners(traced), set[str](), set[str]()
    for ours, theirs in traced.parameters.items():
        (own if owner.get(ours, CALL) == site else others).add(theirs)
    weights = traced.isolated.weights
    found = gradients_to_torch(weights(), traced.rules, traced.reference.weights) if weights else {}
    torchs = {name: array for name, array in gradients_of_weights(traced).items() if name in own - others}
    return {name: found[name] for name in torchs}, torchs


def own_gradients(traced: Traced, weights: Callable[[], PyTree] | None) -> Arrays:
    """jax's gradients of the weights of a run, those of tied weights added up; empty if none were requested."""
    if weights is None:
        return {}
    tree = weights()
    if traced.rules.tied:
        with jax.enable_x64(True):
            found = gradients_to_torch(tree, traced.rules, gradients_of_weights(traced))
            tree = gradients_to_jax(found, tree, traced.rules)
    return layer_arrays(tree, traced.rules, traced.stacks)


def in_layers(traced: Traced, gradients: Arrays) -> Arrays:
    """torch's gradients, by torch's names, as jax's arrays layer by layer; 0 where torch has none."""
    weights = traced.reference.weights.items()
    found = {name: gradients[name] if name in gradients else np.zeros(array.shape) for name, array in weights}
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64) if is_weight(leaf) else leaf, traced.model)
    with jax.enable_x64(True):
        return layer_arrays(gradients_to_jax(found, like, traced.rules), traced.rules, traced.stacks)


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
