"""JAX's operations as the user's code reaches them, and not those inside of a program that one of them runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from flax.core.tracers import current_trace
from jax.extend.core import Primitive


@contextmanager
def bound_operations(note: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Inside, `note` is called with the name and the parameters of each operation before it runs."""
    bind_as_it_is, level = Primitive.bind, current_trace()

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if current_trace() == level:
            note(operation.name, how)
        return bind_as_it_is(operation, *args, **how)

    with mock.patch.object(Primitive, "bind", bind):
        yield
