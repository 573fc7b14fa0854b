"""Pieces of both sides' tensors, of which pairs are made: whole tensors, layers of stacked ones, parts of packed ones."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxformer.convert.rules import WHOLE, Layout, Part, Rule
from jaxformer.parity.trace.call_sites import parent


class JaxPiece(NamedTuple):
    """A JAX tensor, or one layer of a stacked tensor."""

    name: str
    layer: int | None = None

    @property
    def label(self) -> str:
        """Name with the layer's number in front, so that each layer is a tree of modules of its own."""
        return self.name if self.layer is None else f"{self.layer}.{self.name}"


class TorchPiece(NamedTuple):
    """A torch tensor, or a part of one."""

    name: str
    part: Part = WHOLE


def laid_out(torch: np.ndarray, layout: Layout) -> np.ndarray | None:
    """Return torch's array as this layout has it in JAX; None if the array has no such axes."""
    try:
        return Rule("", "", layout).to_jax(torch)
    except ValueError:
        return None


def sizes_beside(name: str, arrays: Mapping[str, np.ndarray], layers: int = 1) -> tuple[int, ...]:
    """Sizes of all tensors of a tensor's module, one layer of each."""
    return tuple(sorted(array.size // layers for other, array in arrays.items() if parent(other) == parent(name)))


def on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convert arrays to numpy."""
    return {name: np.asarray(array) for name, array in arrays.items()}
