"""Weights in the order in which a loop over tokens reads them: each layer's apart, and on a CPU kernels by their columns.

torch's kernels read weights as they are: the PyTorch twin has no such module.
"""

from typing import Any, TypeVar

import jax
from flax import nnx
from jax.export import is_symbolic_dim

from jaxformer.models import GPT, EncoderDecoder
from jaxformer.nn.linear import Columns, Linear
from jaxformer.parallel.mesh import traced_for
from jaxformer.pytree import path_name, take_layers_apart

M = TypeVar("M", GPT, EncoderDecoder)

SOME_ROWS = range(8, 65)
"""Numbers of rows by which a CPU's kernel library multiplies columns faster than a kernel as it is, except a narrow one."""
NARROW, WIDE = 512, 2048
"""Widths of kernels: narrower ones are multiplied as they are with some rows, and those of wider models with a single row."""
AS_ARRAYS = (".key_up.kernel", ".value_up.kernel")
"""Kernels that attention by latents reads head by head."""
LONG = 64
"""Number of tokens from which the time is won back that it takes to lay out all kernels."""


def lay_out(model: M, rows: int, tokens: int) -> M:
    """Return the model laid out for steps of one token for each row, about so many; the machine that traces decides."""
    if is_symbolic_dim(rows) or jax.default_backend() != "cpu" or traced_for() is not None:
        return take_layers_apart(model)
    is_long = tokens >= LONG and (rows > 1 or model.config.d_model < WIDE)
    kernel = model.head.kernel
    if is_long or (kernel is None and rows > 1):  # with several rows, a product with a table's takes up to ten times as long
        laid = by_columns(rows, model.embed.token.table[...].T if kernel is None else kernel[...])
        model = jax.tree.map(lambda leaf: leaf, model)
        model.head.kernel = nnx.data(nnx.Param(laid))
    names = linear_kernels(model) if is_long else frozenset[str]()
    return take_layers_apart(model, lambda name, leaf: by_columns(rows, leaf) if name in names else leaf)


def by_columns(rows: int, kernel: Any) -> Any:
    """Return the columns of a layer's kernel if so many rows are multiplied faster with them, else the kernel.

    Kernels of half precision, which are widened before they are multiplied, stay as they are.
    """
    fits = rows == 1 or (rows in SOME_ROWS and min(kernel.shape) >= NARROW)
    return Columns.of(kernel.T) if fits and kernel.dtype.itemsize >= 4 else kernel


def linear_kernels(model: GPT | EncoderDecoder) -> frozenset[str]:
    """Return the names of the kernels that a step for one token multiplies as they are."""
    layers = jax.tree.leaves_with_path(model, is_leaf=lambda part: isinstance(part, Linear))
    names = {f"{path_name(path)}.kernel" for path, part in layers if isinstance(part, Linear)}
    return frozenset(name for name in names if not name.startswith("encoder.") and not name.endswith(AS_ARRAYS))
