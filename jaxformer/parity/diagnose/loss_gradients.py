"""Gradients of a loss with a mutation. A loss is one number, which many mutations give: a cause has to give jax's gradients
too."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import of_reals
from jaxformer.parity.diagnose.modules import intercepted
from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.replay import Replay, running
from jaxformer.parity.diagnose.trace import Listing, Op
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, distance, host, is_null, rms
from jaxformer.parity.trace.call_records import arrays_in
from jaxformer.parity.trace.call_sites import CALL, Site
from jaxformer.parity.trace.outputs import side_by_side

NEAR = 1e-9
"""Tolerance (relL2) of gradients that count as equal."""


def is_certain(replay: Replay, proposal: Proposal, *, solved: bool) -> bool:
    """True if a proposal that gives jax's array is certain. Where the array is one number, it has to give jax's gradients too;
    without gradients, it may have no free parameter that was solved for."""
    if replay.wanted.size > 1:
        return True
    if not replay.jax_gradients:
        return not solved
    leaves = {name: leaf for name, leaf in leaves_of(replay).items() if name in replay.jax_gradients}
    try:
        found = gradients(replay, proposal, [*leaves.values()])
    except (LookupError, RuntimeError, TypeError, ValueError):
        return False
    pairs = [(host(each), replay.jax_gradients[name]) for name, each in zip(leaves, found, strict=True)]
    noise = NULL_GRADIENT * rms(own for _, own in pairs)
    return all(is_null(each, own, noise) or distance(each, own) <= NEAR for each, own in pairs)


def leaves_of(replay: Replay) -> dict[str, torch.Tensor]:
    """Parameters and float inputs of the user's call, by the names of their gradients."""
    inputs = {f"input {i}": x for i, x in enumerate(replay.call_inputs) if x.is_floating_point()}
    return {**dict(replay.model.named_parameters()), **inputs}


def gradients(replay: Replay, proposal: Proposal, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute torch's gradients of these leaves with a mutation. Where mutated code reads recorded tensors, their gradients go
    on through torch's code as it is, run once more."""
    operations = [op for op in replay.listed if op.target.file]  # without the replay's own
    recorded = tensors_of(operations, replay.given)
    with running(), torch.enable_grad(), requiring([*leaves, *recorded]):
        with proposal.edit():
            output = side_by_side(replay.run_model())
        found = gradients_of([output], [replay.cotangent], [*leaves, *recorded])
        direct, cotangents = found[: len(leaves)], found[len(leaves) :]
        if not any(each.any() for each in cotangents):
            return direct
        further = gradients_of(made_again(replay, operations), cotangents, leaves)
    return [x + more for x, more in zip(direct, further, strict=True)]


def gradients_of(arrays: Sequence[Any], cotangents: Sequence[Any], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the gradients of arrays with these cotangents, 0 for leaves that they do not depend on."""
    total = sum(((x * torch.as_tensor(each)).sum() for x, each in zip(arrays, cotangents, strict=True)), torch.zeros(()))
    return [*torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)]


def made_again(replay: Replay, operations: Sequence[Op]) -> list[torch.Tensor]:
    """Run torch's code as it is, and return the tensors that the replay has recorded of these operations and of boundaries."""
    gave: dict[Site, Any] = {}
    calls: Counter[str] = Counter()

    def noted(path: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
        site = Site(path, calls[path])
        calls[path] += 1
        gave[site] = forward(*args, **kwargs)
        return gave[site]

    modules = {site.path: replay.model.get_submodule(site.path) for site in replay.given if site != CALL}
    with intercepted(modules, noted), Listing() as listing:
        replay.run_model()
    return tensors_of([listing.operations[op.place] for op in operations], {site: gave[site] for site in replay.given})


def tensors_of(operations: Sequence[Op], given: dict[Site, Any]) -> list[torch.Tensor]:
    """Copies of the float tensors that operations were given, by position, and gave; and what boundaries gave."""
    held = (arrays_in((run.args, run.output)) for op in operations for run in op.runs)
    return [x for each in (*held, [*given.values()]) for x in each if of_reals(x)]


@contextmanager
def requiring(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Require gradients of these tensors."""
    for each in tensors:
        each.requires_grad_()
    try:
        yield
    finally:
        for each in tensors:
            each.requires_grad_(False)
