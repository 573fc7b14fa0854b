"""The product with a weight matrix, and a gradient that runs fast on CPU. torch's own gradient is fast: the twin has none."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def matmul(x: Float[Array, "*rows I"], w: Float[Array, "I O"]) -> Float[Array, "*rows O"]:
    """x @ w.

    Autodiff makes the gradient of w a contraction over the rows of x, which XLA's CPU backend runs at about half
    the speed of a plain product. The tangent below reads x through an explicit transpose, so that its own transpose,
    the gradient, is plain. Every transformation works on it: forward and reverse mode, vmap, higher orders.
    """
    return x @ w


@matmul.defjvp
def _matmul_jvp(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    return x @ w, dx @ w + _weight_tangent(x, dw)


def _weight_tangent(x, dw):
    """x @ dw, written so that its transpose with respect to dw is a row-major product."""
    if jax.default_backend() != "cpu":
        return x @ dw
    columns = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1]).T)
    return jnp.einsum("ir,io->ro", columns, dw).reshape(*x.shape[:-1], dw.shape[-1])
