"""Prepare the replay of one call in torch's model."""

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, below
from jaxformer.parity.trace.reference import Reference

if TYPE_CHECKING:  # torch is imported where it is needed
    from jaxformer.parity.diagnose.replay import Replay


def replay_of(
    reference: Reference, owner: Site, place: ArrayKey, boundaries: frozenset[Site], wanted: np.ndarray
) -> "Replay | None":
    """Return the replay of the call `owner`; None if the reference was loaded from a folder, without torch's model."""
    if (source := reference.source) is None:
        return None
    import torch

    from jaxformer.parity.diagnose.replay import Replay

    model = copy.deepcopy(source.module).double().eval().requires_grad_(False)
    tensors = [torch.tensor(array) for array in reference.inputs]
    tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    inner = frozenset(
        site
        for site in boundaries
        if site.path and site != CALL and (owner == CALL or below(site.path, owner.path)) and site.path != owner.path
    )

    def run_model() -> Any:
        with torch._C.DisableTorchFunction():  # code may change its inputs; copying them is no operation of its own
            given = [tensor.clone() for tensor in tensors]
        return source.call(model, *given)

    return Replay(
        model,
        run_model,
        owner,
        place,
        inner,
        wanted,
        inside=source.inside,
        cotangent=reference.cotangent,
        originals=[*zip(tensors_in(model), tensors_in(source.module), strict=True)],
    )


def tensors_in(model: Any) -> list[Any]:
    """Parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]
