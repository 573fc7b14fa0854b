"""Affine map of the last axis. The PyTorch twin uses torch.nn.Linear."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.nn.matmul import matmul
from jaxformer.nn.precision import wide


def add_bias(y: Float[Array, "... O"], bias: Float[Array, " O"]) -> Float[Array, "... O"]:
    """Return y + bias in y's dtype, added in float32 or wider: the bias's gradient is a sum over all rows."""
    return (wide(y) + wide(bias).reshape((1,) * (y.ndim - 1) + (-1,))).astype(y.dtype)


class Linear(nnx.Module):
    """x @ kernel + bias, in the kernel's dtype; the kernel is (in, out), the transpose of torch's weight."""

    def __init__(self, n_in: int, n_out: int, bias: bool):
        self.kernel = nnx.Param(jnp.zeros((n_in, n_out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_out, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        y = matmul(x.astype(self.kernel.dtype), self.kernel[...])
        return y if self.bias is None else add_bias(y, self.bias[...])
