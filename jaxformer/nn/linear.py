"""An affine map of the last axis. The twin has torch.nn.Linear."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.nn.matmul import matmul


class Linear(nnx.Module):
    """x @ kernel + bias; the kernel is (in, out), the transpose of torch's weight."""

    def __init__(self, n_in: int, n_out: int, bias: bool):
        self.kernel = nnx.Param(jnp.zeros((n_in, n_out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_out, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        y = matmul(x, self.kernel[...])
        return y if self.bias is None else y + self.bias[...].reshape((1,) * (y.ndim - 1) + (-1,))
