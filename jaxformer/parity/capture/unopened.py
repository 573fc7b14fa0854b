"""Transformations of JAX that a comparison does not look into: calls inside of them are not compared by themselves.

A `cond` or a `while_loop` is opened where its condition is a number: JAX runs the branch, and the turns, as Python does then.
jit knows no numbers, so that a model with calls inside of one runs without it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

from jaxformer.parity.capture.bound_operations import bound_operations
from jaxformer.parity.capture.call_sites import Visits
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


class HiddenCallsError(Exception):
    """Calls inside of a cond or a while_loop cannot be seen while jit traces it."""


@contextmanager
def none_hidden(visits: Visits) -> Iterator[None]:
    """HiddenCallsError at a cond or a while_loop with calls of modules inside, where jit traces the model."""

    def note(operation: str, _: Mapping[str, Any]) -> None:
        if visits.hidden and operation in ("cond", "while"):
            raise HiddenCallsError(f"jit hides calls inside of {UNOPENED[operation]}")
        if operation in UNOPENED:
            visits.hidden = 0

    if is_traced():
        with bound_operations(note):
            yield
    else:
        yield


def is_traced() -> bool:
    """Whether jit traces what runs here, for its gradients too."""
    return isinstance(jnp.zeros(()), Tracer)
