"""torch's buffers, with the numbers that the JAX model holds for them: an index of positions, a table."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_modules import held
from jaxformer.parity.explain.alterations.rerun import Rerun


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Each buffer of the module with each array of as many numbers of the same kind."""
    for name, buffer in rerun.module.named_buffers():
        numbers = buffer.numpy()
        for path, array in rerun.constants.items():
            if array.size != numbers.size or (array.dtype.kind == "f") != (numbers.dtype.kind == "f"):
                continue
            other = array.reshape(numbers.shape)
            if other.dtype.kind != "f":  # where torch refuses what lies beyond a table, JAX takes the last row
                other = other.clip(max=numbers.max())
            if (differing := np.argwhere(other != numbers)).size:
                place = tuple(differing[0].tolist())
                says = f"{name} {numbers[place]:.6g} at {list(place)}", f"{path} {other[place]:.6g} there"
                yield Alteration(*says, partial(held, buffer, torch.tensor(other)))
