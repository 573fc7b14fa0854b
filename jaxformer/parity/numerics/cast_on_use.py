"""Weights in float32 of which each operation casts what it uses: float64 in half of the memory, for models that are large."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxformer.errors import ParityError

SAME_DTYPE = {f"conv{transposed}{n}d" for transposed in ("", "_transpose") for n in (1, 2, 3)}
SAME_DTYPE |= {"bilinear", "gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"}
"""torch's functions that compare the dtypes of their operands before they are split into operations."""
_cast_on_use: list[bool] = []
"""Non-empty if models keep their weights in float32."""


@contextmanager
def cast_on_use() -> Iterator[None]:
    """Context manager: a model keeps its weights in float32, and each operation casts its own operands to float64.

    The results are those of a model in float64, in half of its memory. JAX's operations have to run one by one, and may mix
    the two dtypes.
    """
    _cast_on_use.append(True)
    try:
        with jax.numpy_dtype_promotion("standard"):
            yield
    finally:
        _cast_on_use.pop()


def casts_on_use() -> bool:
    """True if models keep their weights in float32."""
    return bool(_cast_on_use)


def same_dtype() -> Any:
    """Context manager: torch's functions that compare the dtypes of their operands get float64 ones."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map_only

    def widest(value: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda each: each.double() if each.dtype == torch.float32 else each, value)

    class Widening(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            checks = getattr(func, "__name__", "") in SAME_DTYPE
            return func(*widest(args), **widest(kwargs or {})) if checks else func(*args, **kwargs or {})

    return Widening()


def refuse_weight(written: Any) -> None:
    """Raise ParityError if torch writes into a weight, of which there is no copy."""
    import torch

    if isinstance(written, torch.nn.Parameter):
        raise ParityError(
            "torch's forward pass writes into its own weights, and a model this large is compared without a copy of them; "
            "take that out"
        )


def beside_weights(module: Any) -> Any:
    """Copy a torch module without its weights, which both share: what its forward pass writes stays in the copy.

    Recurrent layers get weights of their own.
    """
    recurrent = {id(weight) for each in module.modules() if is_recurrent(each) for weight in each.parameters()}
    return copy.deepcopy(module, {id(weight): weight for weight in module.parameters() if id(weight) not in recurrent})


def state_to_float64(module: Any) -> Any:
    """Cast to float64 what `beside_weights` copied, and return the module: its float32 buffers, which hold what it writes into
    them, and recurrent layers, which refuse inputs of another dtype than their weights'."""
    import torch

    for each in module.modules():
        for name, buffer in each._buffers.items():
            if buffer is not None and buffer.dtype == torch.float32:
                each._buffers[name] = buffer.double()
        if is_recurrent(each):
            each.double()
    return module


def is_recurrent(module: Any) -> bool:
    """True for torch's RNN, LSTM and GRU."""
    import torch

    return isinstance(module, torch.nn.RNNBase)
