"""The lines of a JAX model that make arrays without values, and other values there."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
from jax.extend.core import Primitive

from jaxformer.parity.capture.source_lines import line_here
from jaxformer.parity.numerics.unset_arrays import EMPTY, OTHER, dtype_of, filled


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
