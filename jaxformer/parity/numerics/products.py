"""In which precision a device multiplies float32 matrices: by what a product gives, not by what is configured."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.numerics.metrics import as_float64, distance, host

SIZE = 128
"""Rows and columns of the matrices that are multiplied."""
FLOAT32 = 1e-6
"""The largest relL2 of a product in float32; it has 2e-7."""
LOWER = ((1e-4, "bfloat16 in three parts"), (1.5e-3, "TF32"), (np.inf, "bfloat16"))
"""The largest relL2 of a product whose factors are rounded to these: 1e-5, 3e-4 and 2e-3 of normal numbers."""


class Product(NamedTuple):
    """A product of two float32 matrices against the same in float64."""

    off: float
    """relL2."""

    @property
    def is_float32(self) -> bool:
        """Whether float32's rounding explains it."""
        return self.off <= FLOAT32

    @property
    def precision(self) -> str:
        """What the factors were rounded to."""
        return "float32" if self.is_float32 else next(name for most, name in LOWER if self.off <= most)

    def __str__(self) -> str:
        return f"{self.precision} (a product is off by {self.off:.0e})"


def product(multiply: Callable[[np.ndarray, np.ndarray], Any]) -> Product:
    """Of two random matrices, by `multiply`."""
    x, y, wide = _factors()
    return Product(distance(as_float64(host(multiply(x, y))), wide))


@functools.cache
def _factors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two matrices, and what they give in float64."""
    x, y = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
    return x, y, as_float64(x) @ as_float64(y)


def jax_product() -> Product:
    """By JAX, on its default device, in its default precision."""
    return product(lambda x, y: jnp.matmul(jnp.asarray(x), jnp.asarray(y)))


def torch_product() -> Product:
    """By torch on a CPU, where the reference is computed."""
    import torch

    return product(lambda x, y: torch.tensor(x) @ torch.tensor(y))
