"""Affine map of the last axis, and the product with a weight matrix whose gradient is fast on CPU.

The PyTorch twin uses torch.nn.Linear, and torch's own gradient is fast: it has no such function."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Float

from jaxformer.nn.precision import wide
from jaxformer.runtime.cores import cores


@jax.custom_jvp
def matmul(x: Float[Array, "*rows I"], w: Float[Array, "I O"]) -> Float[Array, "*rows O"]:
    """Return x @ w.

    Autodiff makes the gradient of w a contraction over the rows of x, which XLA's CPU backend runs at about half the speed of a
    plain product. On CPU the tangent below therefore reads x through an explicit transpose, so that the transpose of that
    tangent, the gradient, is a plain product. Every transformation works on it: forward and reverse mode, vmap, higher orders.
    """
    return x @ w


@matmul.defjvp
def _matmul_jvp(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    return x @ w, dx @ w + _weight_tangent(x, dw)


# checkpoint keeps only x for the backward pass. Without checkpoint, both branches below keep what they need, and a scan over
# layers stacks that of the unused branch too.
@partial(jax.checkpoint, prevent_cse=False)
def _weight_tangent(x, dw):
    """Compute x @ dw. The platform that the program is lowered for decides how, not the machine that traces it."""
    return jax.lax.platform_dependent(x, dw, cpu=_through_transpose, default=jnp.matmul)


def _through_transpose(x, dw):
    """Compute x @ dw so that its transpose with respect to dw is a row-major product."""
    with set_xla_metadata(inlineable="false"):  # a copy by tiles; fused with the producer of x it would go element by element
        columns = _columns(x.reshape(-1, x.shape[-1]))
    columns = jax.lax.optimization_barrier(columns)
    return jnp.einsum("ir,io->ro", columns, dw).reshape(*x.shape[:-1], dw.shape[-1])


@jax.jit
def _columns(x):
    return x.T


FEWEST_GROUPS, MOST_GROUPS = 2, 8
"""Numbers of groups of columns. As one group, XLA's CPU compiler takes their product for another, ten times as slow."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Columns:
    """Kernel of a layer by its columns, for products with few rows on a CPU.

    Each column is read in one piece, and groups of columns are multiplied side by side on the cores. In place of an array it
    is what `multiply` takes.
    """

    columns: Any
    """Columns `G _ I` in groups of equal size; behind the last one come zeros."""
    n_out: int = field(metadata={"static": True})

    @classmethod
    def of(cls, columns: Float[Array, "O I"]) -> "Columns":
        """Part columns into a group for each core."""
        n_out, n_in = columns.shape
        groups = min(max(cores(), FEWEST_GROUPS), MOST_GROUPS)
        return cls(jnp.pad(columns, ((0, -n_out % groups), (0, 0))).reshape(groups, -1, n_in), n_out)

    @property
    def dtype(self) -> Any:
        return self.columns.dtype

    def __getitem__(self, every: Any) -> "Columns":
        """Return itself for `...`, as a parameter is read."""
        return self

    def multiply(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
        """Return the product of x with the kernel."""
        rows = x.reshape(-1, x.shape[-1]).T
        y = jnp.einsum("gci,gir->gcr", self.columns, jnp.broadcast_to(rows, (len(self.columns), *rows.shape)))
        return y.reshape(-1, rows.shape[1])[: self.n_out].T.reshape(*x.shape[:-1], self.n_out)


def multiply(x: Float[Array, "*rows I"], kernel: nnx.Param) -> Float[Array, "*rows O"]:
    """Return x @ kernel, in the kernel's dtype."""
    x, w = x.astype(kernel.dtype), kernel[...]
    return w.multiply(x) if isinstance(w, Columns) else matmul(x, w)


def add_bias(y: Float[Array, "... O"], bias: Float[Array, " O"]) -> Float[Array, "... O"]:
    """Return y + bias in y's dtype, added in float32 or wider: the bias's gradient is a sum over all rows."""
    return (wide(y) + wide(bias).reshape((1,) * (y.ndim - 1) + (-1,))).astype(y.dtype)


class Linear(nnx.Module):
    """x @ kernel + bias, in the kernel's dtype; the kernel is (in, out), the transpose of torch's weight."""

    def __init__(self, n_in: int, n_out: int, bias: bool):
        self.kernel = nnx.Param(jnp.zeros((n_in, n_out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_out, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        y = multiply(x, self.kernel)
        return y if self.bias is None else add_bias(y, self.bias[...])
