"""Transformations of JAX that a comparison does not look into: calls inside of them are not compared by themselves."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxformer.parity.capture.bound_operations import bound_operations
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
    found: dict[str, None] = {}

    def note(operation: str, _: Mapping[str, Any]) -> None:
        if name := UNOPENED.get(operation):
            found[f"{name} ({line_here()})"] = None

    listed: list[str] = []
    with bound_operations(note):
        yield listed
    listed += found
