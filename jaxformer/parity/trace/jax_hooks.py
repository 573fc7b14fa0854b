"""Calls of JAX models: of Flax NNX modules, of Linen and Haiku modules, of pytree modules, and of plain functions that use
`tap`.

Inside `jit` the tracing is recorded; nested jits, scans and rematerialised functions have to be `written_out`. Calls inside
another transformation are recorded if it is a vmap over examples or layers, else not.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar
from unittest import mock

import jax
from flax import linen, nnx
from jax.extend.source_info_util import register_exclusion

from jaxformer.parity.trace.call_records import is_mapped, outside_of_vmaps
from jaxformer.parity.trace.call_sites import Observer, Visits, is_public, join, public_methods
from jaxformer.parity.trace.pytree_modules import Watch, watch_pytrees
from jaxformer.parity.trace.transformations import none_hidden, watch_layers
from jaxformer.pytree import dotted
from jaxformer.validation.fields import check_kind

T = TypeVar("T")
register_exclusion(os.path.dirname(os.path.dirname(__file__)) + os.sep)  # so that JAX's errors show the user's own lines

_running: list[Callable[[str, Any], Any]] = []
"""Functions that record taps in the running comparison."""


def tap(path: str, value: T) -> T:
    """Return `value`; a running comparison compares it with the output of torch's module that holds the parameters under
    `path`.

        x = tap("layers.0.norm", layer_norm(x, params["layers"]["0"]["norm"]))

    Go on with what `tap` returns: where the value itself is used beside it, the gradients of that module differ.

    Inside a module, the path is relative to the module. Modules need no tap; the input and output of a softmax in any model may
    be tapped as `tap("scores", ...)` and `tap("weights", ...)`. `jf.watch` writes the norm of each tapped value of a
    step; `tap("gradient", gradient)` marks the gradient. Elsewhere, `tap` does nothing.
    """
    check_kind("the name of a tap", path, str, "tap('layers.0.norm', x): the name, then the array")
    return _running[-1](path, value) if _running else value


@contextmanager
def recorded_taps(record: Callable[[str, Any], Any]) -> Iterator[None]:
    """Context manager: `tap` returns record(path, value)."""
    _running.append(record)
    try:
        yield
    finally:
        _running.remove(record)


@contextmanager
def watch_jax(model: Any, observer: Observer) -> Iterator[Visits]:
    """Observe all calls on `model`: an NNX module, or the parameters that a Linen module or a function is given."""
    visits = Visits(observer, outside_of_vmaps)

    def here(given: Any) -> bool:
        """True if code that runs on these values can be seen."""
        is_seen = visits.is_seen() or is_mapped(given)
        visits.hidden += not is_seen
        return is_seen

    def record(path: str, value: Any) -> Any:
        return visits.record(path, value) if here(value) else value

    with ExitStack() as stack:
        if isinstance(model, nnx.Module):
            stack.enter_context(_watch_nnx(model, visits, here))
        stack.enter_context(watch_layers(model, visits))
        stack.enter_context(none_hidden(visits))
        run = _run_named(visits, here)
        stack.enter_context(linen.intercept_methods(watch_linen(run)))
        stack.enter_context(_watch_haiku(run))
        stack.enter_context(watch_pytrees(run))
        stack.enter_context(recorded_taps(record))
        yield visits


def _run_named(visits: Visits, here: Callable[[Any], bool]) -> Watch:
    """Return a runner for calls of modules that know their path; calls of a module's own methods are part of the outer call."""

    def run(module: Any, path: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = visits.numbered(path)
        inside = any(path == caller for _, caller in visits.open)
        if inside or not here((args, kwargs)):
            return method(*args, **kwargs)
        return visits.run(module, path, method, args, kwargs)

    return run


def watch_linen(run: Watch) -> Callable[..., Any]:
    """Return a Linen interceptor: the outermost public method of each bound module is a call."""

    def intercept(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        module, name = context.module, context.method_name
        if module.scope is None or not is_public(name) or name == "setup":
            return method(*args, **kwargs)
        return run(module, ".".join(module.path), method, args, kwargs)

    return intercept


def _watch_haiku(run: Watch) -> AbstractContextManager[Any]:
    """Intercept the calls of Haiku's modules, if Haiku is in use."""

    def intercept(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        if not is_public(context.method_name):
            return method(*args, **kwargs)
        return run(context.module, dotted(context.module.module_name), method, args, kwargs)

    haiku = sys.modules.get("haiku")
    return haiku.intercept_methods(intercept) if haiku else nullcontext()


@contextmanager
def _watch_nnx(model: nnx.Module, visits: Visits, here: Callable[[Any], bool]) -> Iterator[None]:
    """Observe calls on `model` and on the modules in it; a copy, as nnx's transformations make, is identified by its arrays,
    and a layer cut out of a stack by its shape."""
    slices: Counter[tuple[str, int]] = Counter()

    def known() -> Iterator[tuple[str, nnx.Module]]:
        """Yield the modules in those that are running, the innermost first, and then those in the model."""
        for owner, path in (*reversed(visits.open), (model, "")):
            yield from modules(owner, path)

    def find(module: Any) -> str | None:
        for same in (lambda found: found is module, lambda found: has_same_arrays(found, module)):
            for path, found in known():
                if same(found):
                    return path
        if not visits.open and jax.tree.structure(module) == jax.tree.structure(model):
            return ""  # a copy of the model, as a cast gives
        for path, found in known():
            if n := layers(module, found):
                if (numbered := visits.numbered(path)) != path:
                    return numbered
                number = slices[path, len(visits.open)] % n
                slices[path, len(visits.open)] += 1
                return f"{path}.{number}"
        return None

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            path = find(module) if here((args, kwargs)) and not visits.is_open(module) else None
            bound = method.__get__(module)
            return bound(*args, **kwargs) if path is None else visits.run(module, path, bound, args, kwargs)

        return run

    with ExitStack() as stack:
        for (owner, name), method in methods_of(model).items():
            stack.enter_context(mock.patch.object(owner, name, watched(method)))
        yield


def methods_of(model: nnx.Module) -> dict[tuple[type, str], Callable[..., Any]]:
    """Return (class, name) -> function: the public methods of the user's modules, and `__call__` of flax's modules."""
    return {
        (owner, name): method
        for kind in {type(module) for _, module in modules(model)}
        for owner, name, method in public_methods(kind, nnx.Module)
        if not is_flax(owner) or (owner is kind and name == "__call__")
    }


def is_flax(kind: type) -> bool:
    """True if a class belongs to flax."""
    return kind.__module__.startswith("flax.")


def modules(value: Any, path: str = "") -> Iterator[tuple[str, nnx.Module]]:
    """Yield all modules in a value by path, the value itself first."""
    if isinstance(value, nnx.Module):
        yield path, value
        items = vars(value)
    elif isinstance(value, (list, tuple)):
        items = dict(enumerate(value))
    else:
        items = value if isinstance(value, dict) else {}
    for name, item in items.items():
        yield from modules(item, join(path, str(name)))


def has_same_arrays(module: Any, other: Any) -> bool:
    """True if one module is a copy of the other that holds the identical array objects, at least one."""
    if type(module) is not type(other):
        return False
    one, many = jax.tree.leaves(module), jax.tree.leaves(other)
    return len(one) == len(many) > 0 and all(a is b for a, b in zip(one, many, strict=True))


def layers(module: Any, stacked: Any) -> int:
    """Return the number of layers in `stacked` if `module` can be one of them; 0 if it cannot."""
    if type(module) is not type(stacked):
        return 0
    one, many = jax.tree.leaves(module), jax.tree.leaves(stacked)
    fits = len(one) == len(many) > 0 and all(m.shape[1:] == o.shape and m.ndim > o.ndim for o, m in zip(one, many, strict=True))
    return many[0].shape[0] if fits else 0
