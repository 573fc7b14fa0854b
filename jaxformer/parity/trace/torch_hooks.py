"""Calls of torch modules, recorded through their methods, and attention scores and weights, around each softmax over keys."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from jaxformer.parity.trace.call_sites import ATTENTION, Observer, Visits, public_methods

Record = Callable[[Any, Any], None]
"""record(scores, weights): of one shape, without gradients."""


def watch_softmax(record: Record) -> AbstractContextManager[Any]:
    """Context manager: `record` gets every softmax of torch's functions, methods and modules, also of nn.MultiheadAttention."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    ordinary = (torch.softmax, torch.Tensor.softmax, torch.special.softmax, functional.softmax)

    class Watching(TorchFunctionMode):
        """Torch function mode that is off inside its own functions: a function that calls another one is recorded once."""

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
    """Return q k^T scale, -inf where a key is masked; the arguments are those of torch's scaled_dot_product_attention."""
    import torch

    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


_running: list[Callable[[str, Any], Any]] = []
"""Functions that record single values in the watched run."""


def record_in_torch(name: str, value: Any) -> None:
    """Record a value of the model's, as if a module of that name returned it; does nothing outside `watch_torch`."""
    if _running:
        _running[-1](name, value)


@contextmanager
def watch_torch(model: Any, observer: Observer) -> Iterator[None]:
    """Observe every module's `forward` and public methods of its own class, in call order.

    Each softmax inside a module is observed as two calls without arguments. Fused fast paths are off.
    """
    import torch

    visits = Visits(observer)

    def watched(module: Any, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if visits.is_open(module) else visits.run(module, path, method, args, kwargs)

        return run

    def record(*arrays: Any) -> None:
        """Record a softmax; one outside the model belongs to no module, and is skipped."""
        if visits.open:
            for name, array in zip(ATTENTION, arrays, strict=True):
                visits.record(name, array)

    with ExitStack() as stack:
        stack.enter_context(without_fast_path())
        stack.enter_context(watch_softmax(record))
        for path, module in model.named_modules():
            own = not type(module).__module__.startswith("torch.")
            names = {name for _, name, _ in public_methods(type(module), torch.nn.Module)} if own else set()
            for name in {"forward", *names}:
                stack.enter_context(mock.patch.object(module, name, watched(module, path, getattr(module, name))))
        _running.append(visits.record)
        stack.callback(_running.remove, visits.record)
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run torch's encoders without the inference kernel that gives NaN for a row of nothing but padding."""
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
