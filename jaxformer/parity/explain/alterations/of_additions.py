"""What may be added where torch's code adds nothing: to the array itself, or to what a norm or a product is given."""

from collections.abc import Iterator
from functools import partial

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.numbers import NEARLY, off
from jaxformer.parity.explain.alterations.of_norms import NORMALIZED
from jaxformer.parity.explain.alterations.of_operations import instead, with_operand
from jaxformer.parity.explain.alterations.of_reads import Arrays, given_in, made_in
from jaxformer.parity.explain.alterations.operations import same
from jaxformer.parity.explain.alterations.rerun import Rerun


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """What is given, the module's own parameters, and what was made before."""
    given = [*given_in(rerun), *parameters(rerun)]
    yield from to_it(rerun, [*given, *made_in(rerun.listed)])
    for operation in rerun.operations:
        x = next(iter(operation.args), None)
        if operation.name in (*NORMALIZED, "linear") and len(operation.runs) == 1 and isinstance(x, torch.Tensor):
            for says, other in fitting(x, given):
                yield instead(operation, f"is given that plus {says}", partial(with_operand, 0, lambda x, o=other: x + o))


def parameters(rerun: Rerun) -> Iterator[tuple[str, torch.Tensor]]:
    """Of several axes, as queries and tokens that are learned."""
    for name, x in rerun.module.named_parameters():
        if x.ndim > 1:
            yield name, x


def fitting(x: torch.Tensor, arrays: Arrays) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of its shape, but for ones and axes in front; not itself."""
    for says, other in arrays:
        along = zip(other.shape[::-1], x.shape[::-1], strict=False)
        fits = other.is_floating_point() and 1 < other.ndim <= x.ndim and other.shape[-1] == x.shape[-1]
        if fits and all(one in (1, many) for one, many in along) and not same(other, x):
            yield says, other


def to_it(rerun: Rerun, arrays: Arrays) -> Iterator[Alteration]:
    """To the array, where that is jax's, as far as can be seen."""
    jax, torchs = rerun.compared.get(rerun.place), torch.from_numpy(rerun.wanted)
    if jax is None or jax.shape != rerun.wanted.shape:
        return
    for says, other in fitting(torchs, arrays) if torchs.is_floating_point() else ():
        if off((torchs + other).numpy(), jax) <= NEARLY:
            yield Alteration("the array as it is", f"adds {says}", lambda o=other: rerun.followed_by(lambda x: x + o))
