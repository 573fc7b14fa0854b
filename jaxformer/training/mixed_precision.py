"""Mixed precision: bfloat16 products over float32 parameters (Micikevicius et al. 2018), as torch.autocast, which the twin
uses.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxformer.config.settings import Precision
from jaxformer.pytree import map_named
from jaxformer.training.step import Loss


def in_bfloat16(loss: Loss) -> Loss:
    """Return the loss of a model whose linear layers compute in bfloat16.

    Parameters stay float32, and so do their gradients, which autodiff casts back: sums over parts of a batch and the
    optimizer's moments are float32 too. Embeddings, residual connections, norms, softmax and the loss itself are float32 as
    before.
    """

    def lowered(model: PyTree, batch: Any, key: PRNGKeyArray | None) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return loss(cast_linear(model), batch, key)

    return lowered


def cast_linear(model: PyTree) -> PyTree:
    """Return the model with its kernels in bfloat16; a tied head gets the table as a kernel of its own."""

    def cast(name: str, leaf: Array) -> Array:
        return leaf.astype(jnp.bfloat16) if name.endswith(".kernel") else leaf

    model = map_named(cast, model)
    if getattr(model.config, "tied", False):
        model.head.kernel = nnx.data(nnx.Param(model.embed.token.table[...].T.astype(jnp.bfloat16)))
    return model


PRECISIONS: dict[Precision, Callable[[Loss], Loss]] = {"float32": lambda loss: loss, "bf16": in_bfloat16}
