"""Pairs of tensors by their gradients, where values are alike: fresh norms and biases."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from jaxformer.parity.pairing.pieces import JaxPiece, TorchPiece

NEAR = 1e-9
"""Relative difference of two gradients in float64 up to which they are one tensor's."""


Gradients = Callable[[], tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]
"""Function that returns the gradients of torch's weights and of JAX's, by name."""


def of_one_gradient(
    gradients: Gradients, jax: Iterable[JaxPiece], torch: Sequence[TorchPiece]
) -> Iterator[tuple[JaxPiece, TorchPiece]]:
    """Yield each of JAX's pieces with the only one of torch's that has its gradient."""
    by_torch, by_jax = gradients()
    for mine in jax:
        back = by_jax.get(mine.name)
        if back is not None:
            back = back if mine.layer is None else back[mine.layer]
            alike = [it for it in torch if _same(by_torch.get(it.name), back)]
            yield from ((mine, it) for it in alike if len(alike) == 1)


def _same(torch: np.ndarray | None, jax: np.ndarray) -> bool:
    """True if two gradients are equal up to rounding, and tell anything."""
    if torch is None or torch.shape != jax.shape or not torch.any():
        return False
    return bool(np.linalg.norm(jax - torch) <= NEAR * np.linalg.norm(torch))
