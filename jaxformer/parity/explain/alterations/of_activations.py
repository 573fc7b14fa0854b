"""What may be otherwise in where activations and gates stand: behind a child of the module, or before it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.explain.alterations.altered import Alteration, Inside, together
from jaxformer.parity.explain.alterations.of_children import given_by, name_of
from jaxformer.parity.explain.alterations.of_operations import is_activation
from jaxformer.parity.explain.alterations.operations import Operation, same
from jaxformer.parity.explain.alterations.rerun import Rerun


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Those of the code first that stand elsewhere, and then another one more."""
    tensors = given_by(rerun)
    yield from done_later(rerun, tensors)
    yield from done_earlier(rerun, tensors)
    yield from once_more(rerun, tensors)


def done_later(rerun: Rerun, tensors: dict[Site, torch.Tensor]) -> Iterator[Alteration]:
    """An activation, or a product with a gate, comes behind the child that goes on with it, and not before."""
    for site, tensor in tensors.items():
        for each in rerun.every_operation:
            read = rerun.inputs.get(site)
            for i, x in enumerate(each.args[:2]) if read is not None and same(each.output, read) else ():
                gate = each.name == "mul" and isinstance(x, torch.Tensor) and x.shape == tensor.shape
                if gate or (i == 0 and is_activation(each)):
                    operands = [tensor if at == i else other for at, other in enumerate(each.args)]
                    later = each.function(*operands, **each.kwargs)
                    says = f"does that behind {name_of(rerun, site)}"
                    if matters(rerun, {site: later}):
                        yield moved(rerun, each, i, says, {site: later})


def done_earlier(rerun: Rerun, tensors: dict[Site, torch.Tensor]) -> Iterator[Alteration]:
    """An activation of what a child gives comes before that child, and so behind the one whose output it is given."""
    for each in filter(is_activation, rerun.every_operation):
        for site in (site for site, tensor in tensors.items() if same(each.args[0], tensor)):
            for other, x in tensors.items():
                if other != site and same(x, rerun.inputs.get(site)):
                    earlier = each.function(x, *each.args[1:], **each.kwargs)
                    yield moved(rerun, each, 0, f"does that before {name_of(rerun, site)}", {other: earlier})


def matters(rerun: Rerun, others: dict[Site, Any]) -> bool:
    """Whether the array depends on what these children give: another one may be given the same."""
    found = rerun.array(rerun.given_outputs(others))
    return found is None or not np.array_equal(found, rerun.wanted)


def moved(rerun: Rerun, operation: Operation, i: int, says: str, others: dict[Site, Any]) -> Alteration:
    """An operation gives its operand `i`, and a child what the operation makes of the child's output."""

    def inside() -> Inside:
        return together(operation.inside(lambda f, a, k, n: a[i]), rerun.given_outputs(others))

    return Alteration(f"computes {operation.source}", says, inside)


def once_more(rerun: Rerun, tensors: dict[Site, torch.Tensor]) -> Iterator[Alteration]:
    """An activation of the code comes behind a child that has none."""
    kinds = {(each.name, repr(each.args[1:])): each for each in filter(is_activation, rerun.every_operation)}
    for site, tensor in tensors.items():
        for each in kinds.values():
            active = each.function(tensor, *each.args[1:], **each.kwargs)
            name = name_of(rerun, site)
            yield Alteration(f"{name} as it is", f"{each.name} of {name}", partial(rerun.given_outputs, {site: active}))
