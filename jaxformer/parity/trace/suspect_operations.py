"""Operations of a JAX model that this jaxlib may compute wrong, and lines that make arrays without values."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
from jax.extend.core import Primitive

from jaxformer.parity.numerics.unset_arrays import EMPTY, OTHER, dtype_of, filled
from jaxformer.parity.trace.source_lines import line_here
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
