"""Mutants of a source of frames, and of the convolution stem that embeds it."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import Array

from jaxformer.evaluation.inject import Mutant, patch, reads_as
from jaxformer.nn.convolution import Convolution


def strides_swapped(original: Callable[..., Array]) -> Callable[..., Array]:
    """Run the convolution of stride 1 with stride 2, and the one of stride 2 with stride 1."""

    def call(self: Any, x: Array) -> Array:
        changed = jax.tree.map(lambda leaf: leaf, self)
        changed.stride = 3 - self.stride
        return original(changed, x)

    return call


def from_last_to_first(original: Callable[..., Array]) -> Callable[..., Array]:
    """Turn the kernel around: the convolution of mathematics, where torch's is a correlation."""

    def call(self: Any, x: Array) -> Array:
        changed = jax.tree.map(lambda leaf: leaf, self)
        changed.kernel = nnx.Param(self.kernel[...][::-1])
        return original(changed, x)

    return call


MUTANTS = [
    Mutant(
        "the stride in the stem's first convolution",
        patch(Convolution, __call__=strides_swapped),
        "frames",
        r"stem\.conv1",
        "parameters.choice at=stride *",
    ),
    Mutant(
        "the stem's kernels turned around",
        patch(Convolution, __call__=from_last_to_first),
        "frames",
        r"stem\.conv[12]",
        "parameters.read how=flip at=weight",
    ),
    Mutant(
        "frames without positions",
        reads_as(0.0, "source_embed.position.table"),
        "frames",
        r"source_embed\.position",
        "values.zeros",
    ),
]
