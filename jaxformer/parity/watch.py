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
from unittest import mock

import jax
import jax.extend
from flax import nnx


class Site(NamedTuple):
    """One call of one module."""

    path: str
    """'stack.blocks.2.attention'; '' is the model itself."""
    call: int
    """How often this module was called before."""

    def __str__(self) -> str:
        return (self.path or "the model") + (f" (call {self.call})" if self.call else "")


@runtime_checkable
class Observer(Protocol):
    """Is told of calls; what it gives back is used instead."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, and the named ones as a dict behind them."""
        ...

    def leave(self, site: Site, output: Any) -> Any:
        """What the call gives."""
        ...


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


def public_methods(kind: type, base: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Methods that a class or its parents below `base` define, `__call__` among them."""
    for owner in reversed(kind.__mro__):
        if issubclass(owner, base) and owner is not base:
            for name, value in vars(owner).items():
                if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
                    yield name, value


@contextmanager
def watch_torch(model: Any, observer: Observer) -> Iterator[None]:
    """torch: every module's `forward` and public methods of its own class, in call order. Fused fast paths are off."""
    import torch

    visits, fused = Visits(observer), torch.backends.mha.get_fastpath_enabled()

    def watched(module: Any, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            inside = any(module is caller for caller, _ in visits.open)
            return method(*args, **kwargs) if inside else visits.run(module, path, method, args, kwargs)

        return run

    with ExitStack() as stack:
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        for path, module in model.named_modules():
            own = not type(module).__module__.startswith("torch.")
            names = dict(public_methods(type(module), torch.nn.Module)) if own else ()
            for name in {"forward", *names}:
                stack.enter_context(_attribute(module, name, watched(module, path, getattr(module, name))))
        yield


@contextmanager
def _attribute(module: Any, name: str, value: Any) -> Iterator[None]:
    vars(module)[name] = value
    try:
        yield
    finally:
        del vars(module)[name]


@contextmanager
def watch_flax(model: nnx.Module, observer: Observer) -> Iterator[None]:
    """Flax NNX: the same, for calls on `model` and on what lies in it; a layer cut out of a stack is found again by its shape.

    Inside of `jit` it watches the tracing; nested jits and scans have to be off (`jax.disable_jit`). What runs in another
    transformation (rematerialised, or under vmap) is not seen.
    """
    visits, level = Visits(observer), jax.extend.core.get_opaque_trace_state(convention="nnx")
    slices: Counter[tuple[str, int]] = Counter()

    def find(module: Any) -> str | None:
        """The path of a module: in what is running, or in the model."""
        for owner, path in [*reversed(visits.open), (model, "")]:
            for below, found in modules(owner):
                if found is module:
                    return join(path, below)
        if not visits.open and jax.tree.structure(module) == jax.tree.structure(model):
            return ""  # a copy of it, as a cast gives
        for owner, path in [*reversed(visits.open), (model, "")]:
            for below, found in modules(owner):
                if n := layers(module, found):
                    stacked, number = join(path, below), (join(path, below), len(visits.open))
                    slices[number] += 1
                    return f"{stacked}.{(slices[number] - 1) % n}"
        return None

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            inside = any(module is caller for caller, _ in visits.open)
            here = jax.extend.core.get_opaque_trace_state(convention="nnx") == level
            path = find(module) if here and not inside else None
            bound = method.__get__(module)
            return bound(*args, **kwargs) if path is None else visits.run(module, path, bound, args, kwargs)

        return run

    with ExitStack() as stack:
        for kind in {type(module) for _, module in modules(model)}:
            for owner in kind.__mro__:
                if issubclass(owner, nnx.Module) and not owner.__module__.startswith("flax."):
                    for name, method in public_methods(owner, nnx.Module):
                        if vars(owner).get(name) is method:
                            stack.enter_context(mock.patch.object(owner, name, watched(method)))
            if kind.__module__.startswith("flax.") and "__call__" in vars(kind):
                stack.enter_context(mock.patch.object(kind, "__call__", watched(vars(kind)["__call__"])))
        yield


def modules(model: nnx.Module) -> Iterator[tuple[str, nnx.Module]]:
    """A module and all that lie in it, by path."""
    yield "", model
    for name, value in vars(model).items():
        yield from _modules(name, value)


def _modules(path: str, value: Any) -> Iterator[tuple[str, nnx.Module]]:
    if isinstance(value, nnx.Module):
        for below, module in modules(value):
            yield join(path, below), module
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _modules(f"{path}.{i}", item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _modules(f"{path}.{name}", item)


def layers(module: Any, stacked: Any) -> int:
    """How many layers `stacked` holds where `module` can be one of them; 0 where it cannot."""
    if type(module) is not type(stacked):
        return 0
    one, many = jax.tree.leaves(module), jax.tree.leaves(stacked)
    fits = (
        one
        and len(one) == len(many)
        and all(m.shape[1:] == o.shape and m.ndim > o.ndim for o, m in zip(one, many, strict=True))
    )
    return many[0].shape[0] if fits else 0


def join(path: str, below: str) -> str:
    """Both parts of a path."""
    return ".".join(part for part in (path, below) if part)
