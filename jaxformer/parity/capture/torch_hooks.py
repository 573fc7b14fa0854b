"""The calls of torch modules, recorded through their methods."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from jaxformer.parity.capture.call_sites import ATTENTION, Observer, Visits, public_methods
from jaxformer.parity.capture.torch_softmax import watch_softmax

_running: list[Callable[[str, Any], Any]] = []
"""What records single values, in the run that is watched."""


def record_in_torch(name: str, value: Any) -> None:
    """A value of the model's, as if a module of that name gave it; outside of `watch_torch` nothing is done."""
    if _running:
        _running[-1](name, value)


@contextmanager
def watch_torch(model: Any, observer: Observer) -> Iterator[None]:
    """Every module's `forward` and public methods of its own class, in call order, and each softmax in one of them as two calls
    without arguments. Fused fast paths are off."""
    import torch

    visits = Visits(observer)

    def watched(module: Any, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if visits.is_open(module) else visits.run(module, path, method, args, kwargs)

        return run

    def record(*arrays: Any) -> None:
        """A softmax outside of the model belongs to no module."""
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
    """Inside, torch's encoders do not use the kernel for inference that gives NaN for a row of nothing but padding."""
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
