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
    """An operation that one of XLA's known faults may reach."""

    fault: Fault
    name: str
    """Of the operation: 'reduce_sum'."""
    module: str
    """Path of the JAX module whose code has it; '' for the model itself."""
    line: str
    """'port.py:12', of the user's code; '' where none of it has the operation."""

    @property
    def place(self) -> str:
        """'reduce_sum in norm, port.py:12'."""
        return f"{self.name} in {', '.join(filter(None, (self.module, self.line))) or 'the model'}"


@contextmanager
def suspect_operations(module: Callable[[], str]) -> Iterator[list[Suspect]]:
    """Inside, operations are noted as they are traced, each once; `module()` is the path of the module that is running."""
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
    """The lines inside that make them, also in a vmap; none where this jax gives zeros."""
    places: list[str] = []

    def note(how: Mapping[str, Any]) -> None:
        if dtype_of(how) is not None:
            places.append(line_here())

    with _seen(note):
        yield places


@contextmanager
def filled_otherwise(line: str) -> Iterator[None]:
    """Inside of `jax_float64`, those that are made at this line have other numbers."""

    def fill(how: Mapping[str, Any]) -> jax.Array | None:
        return filled(how, OTHER) if line_here() == line else None

    with _seen(fill):
        yield


@contextmanager
def _seen(given: Callable[[Mapping[str, Any]], jax.Array | None]) -> Iterator[None]:
    """What `given` gives, if anything, is used in place of such an array."""
    bind_as_it_is = Primitive.bind

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        instead = given(how) if operation.name == EMPTY else None
        return bind_as_it_is(operation, *args, **how) if instead is None else instead

    with mock.patch.object(Primitive, "bind", bind):
        yield
