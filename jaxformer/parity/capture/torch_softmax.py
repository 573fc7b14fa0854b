"""torch's attention scores and weights: what goes into a softmax over the last axis, and what comes out of it.

They are recorded and not changed. The scores and weights that fused attention does not return are computed beside it.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

Record = Callable[[Any, Any], None]
"""record(scores, weights): of one shape, without gradients."""


def watch_softmax(record: Record) -> AbstractContextManager[Any]:
    """Inside, `record` gets every softmax of torch's functions, methods and modules, nn.MultiheadAttention's too."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    ordinary = (torch.softmax, torch.Tensor.softmax, torch.special.softmax, functional.softmax)

    class Watching(TorchFunctionMode):
        """The mode is off inside its own functions: one that calls another is recorded once."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is functional.multi_head_attention_forward:  # the softmax inside it is recorded
                with mock.patch.object(functional, "has_torch_function", return_value=False), self:
                    return func(*args, **kwargs)
            output = func(*args, **kwargs)
            if func is functional.scaled_dot_product_attention:
                with torch.no_grad():
                    scores = fused_scores(*args, **kwargs)
                    record(scores, scores.softmax(-1))
            elif func in ordinary:
                scores, dim = (args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(("input", "dim")))
                if dim is not None and scores.ndim and dim % scores.ndim == scores.ndim - 1:
                    record(scores.detach(), output.detach())
            return output

    return Watching()


def fused_scores(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """q k^T scale, -inf where a key is masked; the arguments are those of torch's scaled_dot_product_attention."""
    import torch

    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
