"""Calls inside a model: every call of every submodule, on both sides, with each layer of a stack by its index.

A call of a module is the outermost call of one of its public methods, so that `embed.encode(ids)` counts as `embed(ids)` does.
An observer sees each call before and after, and may replace the values that go in and come out.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from flax.core.tracers import current_trace

from jaxformer.parity.trace.source_lines import definition_of, line_here
from jaxformer.runtime.crashes import note


def join(*parts: str) -> str:
    """Join the non-empty parts to one path."""
    return ".".join(filter(None, parts))


def parent(name: str) -> str:
    """Return the path of the module that holds a tensor."""
    return name.rpartition(".")[0]


def last(name: str) -> str:
    """Return the last part of a path."""
    return name.rpartition(".")[2]


def ancestors(name: str) -> Iterator[str]:
    """Yield the paths of the modules around a tensor, from the innermost to the model itself, ''."""
    while name:
        name = parent(name)
        yield name


def common_start(names: Iterable[str]) -> str:
    """Return the innermost module around all of these tensors."""
    paths = [parent(name).split(".") for name in names]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared])


def below(name: str, path: str) -> bool:
    """True if a parameter lies in a module."""
    return not path or name.startswith(f"{path}.")


def parameters_of(path: str, names: Iterable[str]) -> list[str]:
    """Return the parameters that lie in a module.

    A tap may also have the name of a parameter, or one to which several parameters add a prefix or a suffix: `q` has `q`, or
    `q_w` and `q_b`, or `wq` and `bq`.
    """
    names, (around, _, own) = [*names], path.rpartition(".")
    whole = [name for name in names if name == path or below(name, path)]
    called = {join(around, letter + own) for letter in "wbWB"}
    return whole or [name for name in names if name in called or (parent(name) == around and name.startswith(f"{path}_"))]


def depth(path: str) -> tuple[int, str]:
    """Return a sort key: the model itself first, then its children, then their children."""
    return (path.count(".") + 1 if path else 0), path


F = TypeVar("F", bound=Callable[..., Any])


class Site(NamedTuple):
    """Call of a module."""

    path: str
    """Path of the module: 'stack.blocks.2.attention'; '' for the model itself."""
    call: int
    """Number of earlier calls of this module."""

    def __str__(self) -> str:
        return (self.path or "the model") + (f" (call {self.call})" if self.call else "")


class ArrayKey(NamedTuple):
    """Array of a call."""

    site: Site
    part: str
    """Field of the call's record: 'inputs', 'output', 'input_gradients' or 'output_gradients'; or 'gradient' of a weight or
    input."""
    number: int
    """Index among torch's arrays."""

    @classmethod
    def gradient(cls, name: str) -> "ArrayKey":
        """Return the key of the gradient of a weight or input."""
        return cls(Site(name, 0), "gradient", 0)


@runtime_checkable
class Observer(Protocol):
    """Observer of calls; the values that it returns replace the given ones."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the positional arguments, followed by the named ones as a dict."""
        ...

    def leave(self, site: Site, output: Any) -> Any:
        """Return the output of the call."""
        ...


ATTENTION = ("scores", "weights")
"""Names of the input and the output of a softmax, below the path of the module that runs it."""

CALL = Site("(call)", 0)
"""The user's function that calls the model: everything that it does around the model is its own code."""


Outside = Callable[[Callable[[Any], Any], Any], Any]
"""outside(observe, value): observe(value) with the values outside of transformations; `value` if that is impossible."""


class Turn(NamedTuple):
    """Iteration of a loop over layers."""

    stacks: frozenset[str]
    """Modules and arrays of which the iteration has one layer."""
    layer: int


class Visits:
    """Running calls, and the number of calls of each module."""

    def __init__(self, observer: Observer, outside: Outside = lambda observe, value: observe(value)):
        self.observer, self.outside = observer, outside
        self.open: list[tuple[Any, str]] = []
        self.calls: Counter[str] = Counter()
        self.turns: list[Turn] = []
        """Current iterations of the loops over layers that are running."""
        self.levels = [current_trace()]
        """JAX traces in which values can be seen: the trace around the model, and those of the running vmaps inside the
        model."""
        self.lines: dict[str, str] = {}
        """Lines of code by path: where the called user code begins, else where it calls a library's module, or taps a value."""
        self.hidden = 0
        """Number of calls that could not be seen, in the operation that is being traced."""

    @contextmanager
    def turn(self, stacks: frozenset[str], layer: int) -> Iterator[None]:
        """Context manager: calls in these stacks count as calls of this layer."""
        self.turns.append(Turn(stacks, layer))
        try:
            yield
        finally:
            self.turns.pop()

    def is_seen(self) -> bool:
        """True if the running code runs once, inside no transformation other than vmaps."""
        return current_trace() in self.levels

    def in_vmap(self, f: F) -> F:
        """Wrap f for a vmap that is called here, so that calls inside the vmap are seen."""

        @wraps(f)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.levels.append(current_trace())
            try:
                return f(*args, **kwargs)
            finally:
                self.levels.pop()

        return run if self.is_seen() else f  # pyright: ignore[reportReturnType]

    def numbered(self, path: str) -> str:
        """Insert the running layer's number after the stack's path; a path that has the number stays."""
        for stacks, layer in self.turns:
            for stack in stacks:
                numbered = join(stack, str(layer))
                if (path == stack or below(path, stack)) and path != numbered and not below(path, numbered):
                    path = numbered + path.removeprefix(stack)
        return path

    def is_open(self, module: Any) -> bool:
        """True if a call of this module is running: calls of its own methods are part of that call."""
        return any(module is caller for caller, _ in self.open)

    def run(self, module: Any, path: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call between the observer's `enter` and `leave`; if its values cannot be seen, run only the call."""
        site, seen = Site(path, self.calls[path]), list[str]()

        def enter(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            seen.append("enter")
            return self.observer.enter(site, arguments)

        def leave(output: Any) -> Any:
            seen.append("leave")
            return self.observer.leave(site, output)

        *positional, named = self.outside(enter, (*args, kwargs))
        if not seen:
            return method(*args, **kwargs)
        self.calls[path] += 1
        if path not in self.lines:
            self.lines[path] = definition_of(method) or line_here()
        note(path or "the model")
        self.open.append((module, path))
        try:
            output = method(*positional, **named)
        finally:
            self.open.pop()
        note(self.open[-1][1] if self.open else "the model")
        output = self.outside(leave, output)
        if "leave" not in seen:
            self.observer.leave(site, None)
        return output

    def record(self, name: str, value: Any) -> Any:
        """Record a value inside the innermost call, as if a module of that name returned it."""
        path = self.numbered(join(self.open[-1][1] if self.open else "", name))
        return self.outside(lambda seen: self.run(None, path, lambda: seen, (), {}), value)


def public_methods(kind: type, base: type) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield (class, name, function) of the public methods, `__call__` included, that a class or its parents below `base`
    define."""
    for owner in kind.__mro__:
        if issubclass(owner, base) and owner is not base:
            for name, value in vars(owner).items():
                if inspect.isfunction(value) and is_public(name):
                    yield owner, name, value


def is_public(name: str) -> bool:
    """True for `__call__` and for names that do not begin with an underscore."""
    return name == "__call__" or not name.startswith("_")
