"""Modules that are pytrees of a library or of the user's own, such as Equinox's: dataclasses with a `__call__`.

JAX flattens and rebuilds such modules wherever they pass a transformation, so that objects lose their identity, but keep their
class. So each module gets a class of its own, which knows the module's path, and reports its calls to a running comparison.
Leaves that are not arrays, such as an activation or a rate, are taken out of the tree, and put back before the user's function
sees it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import getattr_static, isfunction
from typing import Any, NamedTuple, TypeVar

import jax
from flax import linen, nnx

from jaxformer.parity.trace.call_sites import is_public, join
from jaxformer.pytree import path_name

F = TypeVar("F", bound=Callable[..., Any])

Watch = Callable[[Any, str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""watch(module, path, method, args, kwargs): runs a call."""

LIBRARY = "equinox"
"""Package for whose classes only `__call__` counts as a call."""

_watching: list[Watch] = []
"""Functions that observe calls in the running comparison."""


class Opened(NamedTuple):
    """Model split into arrays and other leaves."""

    tree: Any
    """Model with None in place of leaves that are not arrays."""
    rest: Any
    """Model with None in place of arrays; None if `tree` is the whole model."""

    def whole(self, tree: Any) -> Any:
        """Return the model with these arrays."""
        if self.rest is None:
            return tree
        return jax.tree.map(lambda one, other: other if one is None else one, tree, self.rest, is_leaf=_is_none)

    def given(self, f: F) -> F:
        """Wrap an f(model, ...) so that it takes the tree in place of the whole model."""

        @wraps(f)
        def run(tree: Any, *more: Any, **named: Any) -> Any:
            return f(self.whole(tree), *more, **named)

        return f if self.rest is None else run  # pyright: ignore[reportReturnType]


def open_modules(model: Any) -> Opened:
    """Split a model, giving each pytree module in it a class that reports its calls."""
    found = _named(model, "")
    if found is model:
        return Opened(model, None)
    tree, rest = (
        jax.tree.map(lambda leaf, wanted=wanted: leaf if hasattr(leaf, "dtype") == wanted else None, found)
        for wanted in (True, False)
    )
    return Opened(tree, rest)


@contextmanager
def watch_pytrees(watch: Watch) -> Iterator[None]:
    """Observe every call of a module that `open_modules` has prepared."""
    _watching.append(watch)
    try:
        yield
    finally:
        _watching.remove(watch)


def is_module(value: Any) -> bool:
    """True if a value is a pytree module: a callable dataclass that is not Linen's or NNX's."""
    kind = type(value)
    return is_dataclass(value) and callable(value) and not issubclass(kind, (type, linen.Module, nnx.Module))


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _named(value: Any, path: str) -> Any:
    """Return the tree with each pytree module in a class of its own; the value itself if there is none in it."""
    if isinstance(value, nnx.Module):
        return value
    children, tree = _opened_once(value)
    if jax.tree_util.treedef_is_leaf(tree):
        return value
    named = [_named(child, join(path, path_name(key))) for key, child in children]
    same = all(one is other for one, (_, other) in zip(named, children, strict=True))
    module = tree.unflatten(named)
    if is_module(value):
        return _as(module, _of_its_own(type(value), path))
    return value if same else module


def _opened_once(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of a value by key, and the structure that holds them."""
    return jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda each: each is not value)


def _as(module: Any, kind: type) -> Any:
    """Set the class of a module in place, and return the module."""
    object.__setattr__(module, "__class__", kind)
    return module


def _of_its_own(kind: type, path: str) -> type:
    """Create a class for one module, whose public methods all report their calls."""
    library = kind.__module__.partition(".")[0] == LIBRARY
    public = ["__call__"] if library else [name for name in dir(kind) if is_public(name)]
    methods = {name: _watched(getattr(kind, name), path) for name in public if _is_method(kind, name)}
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    own = type(kind)(kind.__name__, (kind,), {**methods, **names})

    def flatten(module: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, tree = _opened_once(_as(copy(module), kind))
        return [(key[0], child) for key, child in children], tree

    with suppress(ValueError):  # Equinox has registered the class already
        jax.tree_util.register_pytree_with_keys(own, flatten, lambda tree, children: _as(tree.unflatten(children), own))
    return own


def _is_method(kind: type, name: str) -> bool:
    """True if the attribute is a function of the instance, possibly wrapped by a library."""
    return isfunction(getattr(kind, name)) and not isinstance(getattr_static(kind, name), (staticmethod, classmethod))


def _watched(method: Callable[..., Any], path: str) -> Callable[..., Any]:
    @wraps(method)
    def run(module: Any, *args: Any, **kwargs: Any) -> Any:
        bound = partial(method, module)
        return _watching[-1](module, path, bound, args, kwargs) if _watching else bound(*args, **kwargs)

    return run
