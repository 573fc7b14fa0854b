"""Precision in which a device multiplies float32 matrices, measured on a product instead of read from the configuration."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.numerics.metrics import as_float64, distance, host

SIZE = 128
"""Number of rows and columns of the multiplied matrices."""
FLOAT32 = 1e-6
"""Largest relL2 of a float32 product; 2e-7 was measured."""
LOWER = ((1e-4, "bfloat16 in three parts"), (1.5e-3, "TF32"), (np.inf, "bfloat16"))
"""Largest relL2 of a product by what its factors are rounded to; normal numbers give 1e-5, 3e-4 and 2e-3."""


class Product(NamedTuple):
    """Accuracy of a product of two float32 matrices, against the product in float64."""

    off: float
    """relL2 of the product."""

    @property
    def is_float32(self) -> bool:
        """True if float32's rounding explains the error."""
        return self.off <= FLOAT32

    @property
    def precision(self) -> str:
        """Name of the precision that the factors were rounded to."""
        return "float32" if self.is_float32 else next(name for most, name in LOWER if self.off <= most)

    def __str__(self) -> str:
        return f"{self.precision} (a product is off by {self.off:.0e})"


def product(multiply: Callable[[np.ndarray, np.ndarray], Any]) -> Product:
    """Measure `multiply` on two random matrices."""
    x, y, wide = _factors()
    return Product(distance(as_float64(host(multiply(x, y))), wide))


@functools.cache
def _factors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two random float32 matrices and their product in float64."""
    x, y = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
    return x, y, as_float64(x) @ as_float64(y)


def jax_product() -> Product:
    """Measure JAX's product on its default device, in its default precision."""
    return product(lambda x, y: jnp.matmul(jnp.asarray(x), jnp.asarray(y)))


def torch_product() -> Product:
    """Measure torch's product on the CPU, where the reference is computed."""
    import torch

    return product(lambda x, y: torch.tensor(x) @ torch.tensor(y))
