"""What happens inside a model: every call of every submodule, on both sides, each layer of a stack by its index.

A call of a module is the outermost call of one of its public methods, so that `embed.encode(ids)` counts as `embed(ids)` does.
An observer is told of each call before and after, and may put other values in place of those that come and go.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Site(NamedTuple):
    """One call of one module."""

    path: str
    """'stack.blocks.2.attention'; '' is the model itself."""
    call: int
    """How often this module was called before."""

    def __str__(self) -> str:
        return (self.path or "the model") + (f" (call {self.call})" if self.call else "")


class ArrayKey(NamedTuple):
    """One array of one call."""

    site: Site
    part: str
    """Of its record: 'inputs', 'output', 'input_gradients' or 'output_gradients'; 'gradient' of a weight or input."""
    number: int
    """Among torch's."""

    @classmethod
    def gradient(cls, name: str) -> "ArrayKey":
        """Of a weight or input."""
        return cls(Site(name, 0), "gradient", 0)


@runtime_checkable
class Observer(Protocol):
    """Is told of calls; what it gives back is used instead."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, and the named ones as a dict behind them."""
        ...

    def leave(self, site: Site, output: Any) -> Any:
        """What the call gives."""
        ...


ATTENTION = ("scores", "weights")
"""Below the path of what runs a softmax stand what goes into it and what comes out of it."""

CALL = Site("(call)", 0)
"""The user's function that calls the model: whatever it does around the model is its own code."""


class Visits:
    """Which calls are going on, and how many there were."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.open: list[tuple[Any, str]] = []
        self.calls: Counter[str] = Counter()

    def run(self, module: Any, path: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call itself, between the observer's two moments."""
        site = Site(path, self.calls[path])
        self.calls[path] += 1
        *positional, kwargs = self.observer.enter(site, (*args, kwargs))
        self.open.append((module, path))
        try:
            output = method(*positional, **kwargs)
        finally:
            self.open.pop()
        return self.observer.leave(site, output)

    def tell(self, name: str, value: Any) -> Any:
        """A value inside of the innermost call, as if a module of that name gave it."""
        path = ".".join(filter(None, (self.open[-1][1] if self.open else "", name)))
        return self.run(None, path, lambda: value, (), {})


def public_methods(kind: type, base: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Methods that a class or its parents below `base` define, `__call__` among them."""
    for owner in reversed(kind.__mro__):
        if issubclass(owner, base) and owner is not base:
            for name, value in vars(owner).items():
                if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
                    yield name, value


@contextmanager
def watch_torch(model: Any, observer: Observer) -> Iterator[None]:
    """torch: every module's `forward` and public methods of its own class, in call order, and each softmax in one of them as
    two calls without arguments. Fused fast paths are off."""
    import torch

    from jaxformer.parity.capture.torch_softmax import watch_softmax

    visits = Visits(observer)

    def watched(module: Any, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            inside = any(module is caller for caller, _ in visits.open)
            return method(*args, **kwargs) if inside else visits.run(module, path, method, args, kwargs)

        return run

    def seen(*arrays: Any) -> None:
        """A softmax outside of the model is nobody's."""
        if visits.open:
            for name, array in zip(ATTENTION, arrays, strict=True):
                visits.tell(name, array)

    with ExitStack() as stack:
        stack.enter_context(without_fast_path())
        stack.enter_context(watch_softmax(seen))
        for path, module in model.named_modules():
            own = not type(module).__module__.startswith("torch.")
            names = dict(public_methods(type(module), torch.nn.Module)) if own else ()
            for name in {"forward", *names}:
                stack.enter_context(_attribute(module, name, watched(module, path, getattr(module, name))))
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """torch's encoders take another kernel in inference, which gives NaN for a row of nothing but padding; here not."""
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _attribute(module: Any, name: str, value: Any) -> Iterator[None]:
    vars(module)[name] = value
    try:
        yield
    finally:
        del vars(module)[name]
