"""Weights in the order in which a loop over tokens reads them: each layer's apart, and on a CPU kernels by their columns.

torch's kernels read weights as they are: the PyTorch twin has no such module.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
from flax import nnx

from jaxformer.models import GPT, EncoderDecoder
from jaxformer.nn.linear import Columns
from jaxformer.parallel.mesh import traced_for
from jaxformer.pytree import take_layers_apart

M = TypeVar("M", GPT, EncoderDecoder)

SOME_ROWS = range(8, 65)
"""Numbers of rows by which a CPU's kernel library multiplies columns faster than a kernel as it is, but narrow ones."""
NARROW, WIDE = 512, 2048
"""Widths of kernels: narrower ones are multiplied as they are with some rows, and wider ones with a single row."""
AS_ARRAYS = ("key_up.kernel", "value_up.kernel")
"""Kernels that attention by latents reads head by head."""
LONG = 64
"""Number of tokens from which the time is won back that it takes to lay out all kernels."""


def lay_out(model: M, rows: int, tokens: int) -> M:
    """Return the model laid out for steps of one token for each row, about so many."""
    if jax.default_backend() != "cpu" or traced_for() is not None:
        return take_layers_apart(model)
    by_columns = partial(columns_of, rows) if tokens >= LONG else None
    if (kernel := kernel_of_head(model, rows, by_columns)) is not None:
        model = jax.tree.map(lambda leaf: leaf, model)
        model.head.kernel = nnx.data(nnx.Param(kernel))
    return take_layers_apart(model, by_columns)


def kernel_of_head(model: GPT | EncoderDecoder, rows: int, by_columns: Callable[[str, Any], Any] | None) -> Any:
    """Return the kernel that the head is to have; None if it stays as it is."""
    kernel, table = model.head.kernel, model.embed.token.table[...]
    if kernel is None and rows > 1:  # a product with the table's rows takes up to ten times as long
        return Columns.of(table) if rows in SOME_ROWS else table.T
    if by_columns is None:
        return None
    laid = by_columns("head.kernel", table.T if kernel is None else kernel[...])
    return laid if isinstance(laid, Columns) else None


def columns_of(rows: int, name: str, leaf: Any) -> Any:
    """Return the columns of a layer's kernel, if so many rows are multiplied faster with them; any other leaf as it is.

    Kernels of experts and convolutions have three axes; those of half precision are widened before they are multiplied.
    """
    if not name.endswith(".kernel") or name.endswith(AS_ARRAYS) or leaf.ndim != 2 or leaf.dtype.itemsize < 4:
        return leaf
    width = min(leaf.shape)
    return Columns.of(leaf.T) if (width < WIDE if rows == 1 else rows in SOME_ROWS and width >= NARROW) else leaf
