"""Operations of a JAX model that this jaxlib may compute wrong, lines that make arrays without values, and random numbers that
a model draws while it runs, on the host or by `jax.random`: the other side cannot get the same ones."""

import gc
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.extend.core import Primitive

from jaxformer.parity.numerics.float64 import torch_operations
from jaxformer.parity.numerics.jax_operations import EMPTY, OTHER, dtype_of, filled
from jaxformer.parity.trace.source_lines import is_users, line_here
from jaxformer.parity.trace.transformations import UNOPENED, bound_operations
from jaxformer.runtime.xla_options import SUSPECTED, Fault, Operation, faults


class Suspect(NamedTuple):
    """Operation that one of XLA's known faults may affect."""

    fault: Fault
    name: str
    """Name of the operation: 'reduce_sum'."""
    module: str
    """Path of the JAX module whose code has the operation; '' for the model itself."""
    line: str
    """Line of the user's code, 'port.py:12'; '' if the operation is not in it."""

    @property
    def place(self) -> str:
        """Place of the operation: 'reduce_sum in norm, port.py:12'."""
        return f"{self.name} in {', '.join(filter(None, (self.module, self.line))) or 'the model'}"


@contextmanager
def suspect_operations(module: Callable[[], str]) -> Iterator[list[Suspect]]:
    """Record suspect operations as they are traced, each once; `module()` returns the path of the running module."""
    found: list[Suspect] = []
    if not (known := faults()):
        yield found
        return
    bind_as_it_is = Primitive.bind

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if not operation.name.startswith(SUSPECTED):
            return bind_as_it_is(operation, *args, **how)
        seen = Operation(operation.name, [getattr(arg, "shape", ()) for arg in args], how)
        for fault in known:
            if fault.suspects(seen) and (suspect := Suspect(fault, operation.name, module(), line_here())) not in found:
                found.append(suspect)
        return bind_as_it_is(operation, *args, **how)

    with mock.patch.object(Primitive, "bind", bind):
        yield found


@contextmanager
def empty_arrays() -> Iterator[list[str]]:
    """Record the lines that make arrays without values, also in a vmap; none if this jax fills them with zeros."""
    places: list[str] = []

    def note(how: Mapping[str, Any]) -> None:
        if dtype_of(how) is not None:
            places.append(line_here())

    with _seen(note):
        yield places


@contextmanager
def filled_otherwise(line: str) -> Iterator[None]:
    """Context manager, inside `jax_float64`: arrays made without values at this line have other fill values."""

    def fill(how: Mapping[str, Any]) -> jax.Array | None:
        return filled(how, OTHER) if line_here() == line else None

    with _seen(fill):
        yield


@contextmanager
def _seen(given: Callable[[Mapping[str, Any]], jax.Array | None]) -> Iterator[None]:
    """Context manager: the result of `given`, unless None, replaces an array made without values."""
    bind_as_it_is = Primitive.bind

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        instead = given(how) if operation.name == EMPTY else None
        return bind_as_it_is(operation, *args, **how) if instead is None else instead

    with mock.patch.object(Primitive, "bind", bind):
        yield


HELD = "a numpy generator that the model holds"
"""Place of a draw whose line is not known."""


@contextmanager
def host_draws(*models: Any) -> Iterator[list[str]]:
    """Record the lines of the user's code that draw random numbers on the host.

    Generators with a seed of their own count only if `models` hold them, since each run continues where the last one ended.
    """
    places: list[str] = []
    before = [(each, repr(each.bit_generator.state)) for each in generators(*models)]

    def noting(draw: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            if draw is not np.random.default_rng or not (args or kwargs):
                places.append(line_here())
            return draw(*args, **kwargs)

        return drawn

    owners = [(np.random, name) for name in np.random.__all__ if name[0].islower()]
    owners += [(random, name) for name in random.__all__ if name[0].islower()]
    owners = [(owner, name) for owner, name in owners if name not in ("seed", "get_state", "set_state", "getstate", "setstate")]
    with ExitStack() as stack:
        for owner, name in [*owners, (np.random, "default_rng")]:
            if callable(draw := getattr(owner, name)):
                stack.enter_context(mock.patch.object(owner, name, noting(draw)))
        yield places
    if not places and any(repr(each.bit_generator.state) != state for each, state in before):
        places.append(HELD)


def generators(*models: Any) -> list[np.random.Generator]:
    """Return the numpy generators that models hold: in attributes, containers and closures, or as globals of the user's own
    code."""
    waiting, seen = [*models], {}
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not imports(each):
            seen[id(each)] = each
            waiting += held_by(each)
    return [each for each in seen.values() if isinstance(each, np.random.Generator)]


def imports(each: Any) -> bool:
    """True if an object describes how a module was imported; every module's globals hold one, and all of pytest is reachable
    from it."""
    return isinstance(each, ModuleSpec) or hasattr(type(each), "exec_module")


def held_by(each: Any) -> list[Any]:
    """Return the objects that an object refers to; for a library's functions only their closure and defaults, for its classes
    and for modules nothing."""
    if isinstance(each, FunctionType) and not is_users(each.__code__.co_filename):
        return [each.__closure__, each.__defaults__, each.__kwdefaults__]
    if isinstance(each, ModuleType) or (isinstance(each, type) and not is_users_class(each)):
        return []
    return gc.get_referents(each)


def is_users_class(each: type) -> bool:
    """True if a class is the user's; also if it is typed into a notebook, whose module has no file."""
    file = getattr(sys.modules.get(each.__module__), "__file__", None)
    return each.__module__ == "__main__" or (file is not None and is_users(file))


JAX_DRAWS = ("random_bits", "random_gamma", "rng_bit_generator", "rng_uniform")
"""JAX's primitives that return random numbers."""


@contextmanager
def jax_draws() -> Iterator[list[str]]:
    """Record the lines of the user's code that draw in JAX, also inside a loop or a branch.

    Draws for shapes alone, as in Linen's initialisers, do not count.
    """
    places: list[str] = []

    def note(operation: str, how: Mapping[str, Any]) -> None:
        if operation in JAX_DRAWS or (operation in UNOPENED and does_draw(how)):
            places.append(line_here())

    with bound_operations(note):
        yield places


def does_draw(how: Mapping[str, Any]) -> bool:
    """True if one of the programs among an operation's parameters draws random numbers."""
    programs = (program for value in how.values() for program in (value if isinstance(value, tuple | list) else (value,)))
    steps = (step for program in programs for step in getattr(getattr(program, "jaxpr", program), "eqns", ()))
    return any(step.primitive.name in JAX_DRAWS or does_draw(step.params) for step in steps)


@contextmanager
def torch_draws() -> Iterator[list[str]]:
    """Record the lines of the user's code that draw in torch; fused attention, which may drop weights, is left out."""
    import torch

    places: list[str] = []

    def noting(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in operation.tags and "attention" not in str(operation):
            places.append(line_here())
        return operation(*args, **kwargs)

    with torch_operations(noting):
        yield places
