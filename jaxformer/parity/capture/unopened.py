"""Transformations of JAX that a comparison does not look into: calls inside of them are not compared by themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from flax.core.tracers import current_trace
from jax.extend.core import Primitive

from jaxformer.parity.capture.source_lines import line_here

UNOPENED = {
    "cond": "cond",
    "while": "while_loop",
    "shard_map": "shard_map",
    "pallas_call": "pallas_call",
    "ffi_call": "ffi_call",
    "pure_callback": "pure_callback",
    "io_callback": "io_callback",
    "custom_vjp_call": "custom_vjp",
}
"""JAX's operations that run a program of their own -> what users call them. Loops over layers and what is rematerialised are
written out; `custom_jvp` is what jax.nn's own functions are made of."""


@contextmanager
def unopened() -> Iterator[list[str]]:
    """'while_loop (port.py:12)' for each that is used inside, in call order."""
    bind_as_it_is, level = Primitive.bind, current_trace()
    found: dict[str, None] = {}

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if (name := UNOPENED.get(operation.name)) and current_trace() == level:
            found[f"{name} ({line_here()})"] = None
        return bind_as_it_is(operation, *args, **how)

    listed: list[str] = []
    with mock.patch.object(Primitive, "bind", bind):
        yield listed
    listed += found
