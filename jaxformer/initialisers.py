"""Which initial distribution each tensor gets: one table a scheme, read by both frameworks. No jax is imported here.

A tensor is known by its path in the JAX model (`stack.blocks.attention.query.kernel`) and by its shape without
the layer axis; a kernel's shape is (in, out).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxformer.config import Init

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Initialiser:
    """A distribution: normal with deviation `value`, uniform in +-`value`, or the constant `value`."""

    kind: Literal["normal", "uniform", "constant"]
    value: float

    def __str__(self) -> str:
        return {"normal": "normal(0, {:.4g})", "uniform": "uniform(+-{:.4g})", "constant": "{:g}"}[self.kind].format(self.value)


ZEROS, ONES = Initialiser("constant", 0.0), Initialiser("constant", 1.0)


def fan_in(path: str, shapes: Shapes) -> int:
    """Number of inputs of the matrix that a kernel is, or that a bias belongs to."""
    return shapes[path.removesuffix("bias") + "kernel" if path.endswith(".bias") else path][0]


def torch_default(path: str, shapes: Shapes, n_layers: int) -> Initialiser:
    """torch.nn.Linear and torch.nn.Embedding as they come: U(+-1/sqrt(fan_in)), biases too; N(0, 1)."""
    if path.endswith(".table"):
        return Initialiser("normal", 1.0)
    return Initialiser("uniform", 1 / math.sqrt(fan_in(path, shapes)))


def gpt2(path: str, shapes: Shapes, n_layers: int) -> Initialiser:
    """N(0, 0.02); what is added to the residual stream is scaled by 1/sqrt(2 L) (Radford et al. 2019, section 2.3)."""
    if path.endswith(".bias"):
        return ZEROS
    residual = path.endswith((".out.kernel", ".down.kernel"))
    return Initialiser("normal", 0.02 / math.sqrt(2 * n_layers) if residual else 0.02)


def xavier(path: str, shapes: Shapes, n_layers: int) -> Initialiser:
    """U(+-sqrt(6 / (in + out))) for every matrix, tables too; biases zero (Glorot and Bengio 2010, equation 16)."""
    if path.endswith(".bias"):
        return ZEROS
    return Initialiser("uniform", math.sqrt(6 / sum(shapes[path])))


SCHEMES = {"torch": torch_default, "gpt2": gpt2, "xavier": xavier}


def initialisers(scheme: Init, shapes: Shapes, n_layers: int) -> dict[str, Initialiser]:
    """The initialiser of every tensor by its path. Norms start as the identity under every scheme."""

    def of(path: str) -> Initialiser:
        if path.endswith(".scale"):
            return ONES
        if path.endswith("norm.bias"):
            return ZEROS
        return SCHEMES[scheme](path, shapes, n_layers)

    return {path: of(path) for path in shapes}
