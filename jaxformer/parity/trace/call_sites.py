"""The calls inside a model: every call of every submodule, on both sides, each layer of a stack by its index.

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
    """One path of parts, of which some may be empty."""
    return ".".join(filter(None, parts))


def parent(name: str) -> str:
    """The module that a tensor lies in."""
    return name.rpartition(".")[0]


def last(name: str) -> str:
    """What it is called in there."""
    return name.rpartition(".")[2]


def ancestors(name: str) -> Iterator[str]:
    """Modules around a tensor, from the inner one to the model itself, ''."""
    while name:
        name = parent(name)
        yield name


def common_start(names: Iterable[str]) -> str:
    """The innermost module around all of these tensors."""
    paths = [parent(name).split(".") for name in names]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared])


def below(name: str, path: str) -> bool:
    """Whether a parameter lies in a module."""
    return not path or name.startswith(f"{path}.")


def parameters_of(path: str, names: Iterable[str]) -> list[str]:
    """Those that lie in a module. A tap may also be called as a parameter is, or as several begin or end: `q` has `q`, or `q_w`
    and `q_b`, or `wq` and `bq`."""
    names, (around, _, own) = [*names], path.rpartition(".")
    whole = [name for name in names if name == path or below(name, path)]
    called = {join(around, letter + own) for letter in "wbWB"}
    return whole or [name for name in names if name in called or (parent(name) == around and name.startswith(f"{path}_"))]


def depth(path: str) -> tuple[int, str]:
    """For sorting: the model itself first, then its children, then the children of those."""
    return (path.count(".") + 1 if path else 0), path


F = TypeVar("F", bound=Callable[..., Any])


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
    """Sees calls; what it returns is used instead."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, and the named ones as a dict behind them."""
        ...

    def leave(self, site: Site, output: Any) -> Any:
        """What the call gives."""
        ...


ATTENTION = ("scores", "weights")
"""Names of the input and the output of a softmax, below the path of the module that runs it."""

CALL = Site("(call)", 0)
"""The user's function that calls the model: whatever it does around the model is its own code."""


Outside = Callable[[Callable[[Any], Any], Any], Any]
"""outside(observe, value): observe(value) with the values as they are outside of transformations; `value` where it cannot."""


class Turn(NamedTuple):
    """One turn of a loop over layers."""

    stacks: frozenset[str]
    """The modules and arrays of which it has one layer."""
    layer: int


class Visits:
    """The calls that are running, and how many there were of each module."""

    def __init__(self, observer: Observer, outside: Outside = lambda observe, value: observe(value)):
        self.observer, self.outside = observer, outside
        self.open: list[tuple[Any, str]] = []
        self.calls: Counter[str] = Counter()
        self.turns: list[Turn] = []
        """Of the loops over layers that are running."""
        self.levels = [current_trace()]
        """Where values can be seen: JAX's trace around the model, and those of the vmaps in it that are running."""
        self.lines: dict[str, str] = {}
        """By paths: where the user's code begins that is called, or else where it calls a library's module, or taps a value."""
        self.hidden = 0
        """Calls that could not be seen, in the operation that is traced."""

    @contextmanager
    def turn(self, stacks: frozenset[str], layer: int) -> Iterator[None]:
        """While it runs, calls in these stacks are calls of that layer's."""
        self.turns.append(Turn(stacks, layer))
        try:
            yield
        finally:
            self.turns.pop()

    def is_seen(self) -> bool:
        """Whether what runs now runs once, in no other transformation than in vmaps."""
        return current_trace() in self.levels

    def in_vmap(self, f: F) -> F:
        """f, for a vmap that is called here."""

        @wraps(f)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.levels.append(current_trace())
            try:
                return f(*args, **kwargs)
            finally:
                self.levels.pop()

        return run if self.is_seen() else f  # pyright: ignore[reportReturnType]

    def numbered(self, path: str) -> str:
        """The path with the number of the layer that is running behind the stack's; one that has it stays."""
        for stacks, layer in self.turns:
            for stack in stacks:
                numbered = join(stack, str(layer))
                if (path == stack or below(path, stack)) and path != numbered and not below(path, numbered):
                    path = numbered + path.removeprefix(stack)
        return path

    def is_open(self, module: Any) -> bool:
        """Whether a call of this module is running: what it calls of its own is part of that call."""
        return any(module is caller for caller, _ in self.open)

    def run(self, module: Any, path: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call itself, between `enter` and `leave` of the observer; where its values cannot be seen, the call alone."""
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
        """A value inside of the innermost call, as if a module of that name returned it."""
        path = self.numbered(join(self.open[-1][1] if self.open else "", name))
        return self.outside(lambda seen: self.run(None, path, lambda: seen, (), {}), value)


def public_methods(kind: type, base: type) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """(class, name, function) of the methods that a class or its parents below `base` define, `__call__` among them."""
    for owner in kind.__mro__:
        if issubclass(owner, base) and owner is not base:
            for name, value in vars(owner).items():
                if inspect.isfunction(value) and is_public(name):
                    yield owner, name, value


def is_public(name: str) -> bool:
    """Whether a user calls a method of this name."""
    return name == "__call__" or not name.startswith("_")
