"""Parameters that only one side trains: torch freezes them, or the other side does not have them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxformer.convert.rules import gradients_to_torch
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, Error, rms
from jaxformer.parity.pairing.buffers import typed_constants
from jaxformer.parity.pairing.modules import parameter_pairs
from jaxformer.parity.report.data import Module
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import parameters_of
from jaxformer.parity.trace.reference import Reference
from jaxformer.pytree import map_named, named_leaves

INFINITE = Error(float("inf"), float("inf"))


def trained_alone(reference: Reference, traced: Traced, candidate: Candidate) -> dict[str, str]:
    """Map these parameters' names, torch's if it has any, to messages; gradients of rounding noise do not count as training."""
    if not reference.gradients or traced.normal_run.weights is None:
        return {}
    noise, static = NULL_GRADIENT * rms(reference.gradients.values()), typed_constants(candidate.like)
    own = named_leaves(traced.normal_run.weights())
    varied = map_named(lambda name, leaf: np.zeros(leaf.shape) if name in static else leaf, traced.normal_run.weights())
    ours = gradients_to_torch(varied, candidate.family, reference.weights) if reference.frozen else {}
    found = {name: (ours[name], FREEZES) for name in sorted(reference.frozen & set(ours))}
    for each in candidate.alone:
        theirs = reference.gradients.get(each.name)
        if each.side == "jax":
            found[each.name] = np.asarray(own[each.name]), HAS
        elif theirs is not None:
            found[each.name] = theirs, LEAVES_OUT
    return {name: says.format(name) for name, (array, says) in found.items() if np.abs(array).max(initial=0.0) > noise}


def blamed(rows: list[Module], candidate: Candidate, trained: Mapping[str, str]) -> list[Module]:
    """Mark the innermost module around each such parameter as diverging.

    The same holds for parameters that only one side has and that change the module's output. The modules are those of both
    sides.
    """
    owners = {theirs: ours for ours, theirs in parameter_pairs(candidate.like, candidate.family).items()}
    said: dict[int, list[str]] = {}
    sent: set[int] = set()
    for each in candidate.alone:
        if not each.is_neutral:
            said.setdefault(row_around(rows, each.name, each.side == "torch"), []).append(each.says())
    for name, why in trained.items():
        ours = owners.get(name)
        theirs = ours is None and not any(each.side == "jax" and each.name == name for each in candidate.alone)
        sent.add(place := row_around(rows, ours or name, theirs))
        if not said.get(place):
            said.setdefault(place, []).append(why)

    def row(number: int, module: Module) -> Module:
        if number not in said:
            return module
        cause = "; ".join(filter(None, (*said[number], module.cause)))
        back = INFINITE if number in sent else module.local_gradient
        what = module.what or "gradient of a parameter"
        return replace(module, diverging=True, cause=cause, local_gradient=back, what=what)

    return [row(number, module) for number, module in enumerate(rows)]


def row_around(rows: list[Module], name: str, torch: bool) -> int:
    """Index of the row of the innermost module around a parameter; the call's row if there is none."""
    paths = [(module.torch if torch else module.jax).replace("the model", "") for module in rows]
    name = name.removeprefix("params.")
    around = (i for i, path in enumerate(paths) if parameters_of(path, [name]))
    return max(around, key=lambda i: len(paths[i]), default=len(rows) - 1)


FREEZES, LEAVES_OUT, HAS = (
    "torch freezes {}; jax trains it",
    "torch trains {}, which jax leaves out",
    "jax trains {}, which torch has not",
)
