"""JAX's transformations: those that are written out while code is traced, so that calls inside are seen, and those that a
comparison does not look into."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from flax.core.tracers import current_trace
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.extend.core.primitives import reduce_sum_p

from jaxformer.parity.trace.call_sites import Visits
from jaxformer.parity.trace.source_lines import line_here
from jaxformer.runtime.xla_options import exact


@contextmanager
def bound_operations(note: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Context manager: `note` is called with the name and the parameters of each operation before it runs."""
    bind_as_it_is, level = Primitive.bind, current_trace()

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if current_trace() == level:
            note(operation.name, how)
        return bind_as_it_is(operation, *args, **how)

    with mock.patch.object(Primitive, "bind", bind):
        yield


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
"""JAX's primitives that run a program of their own -> what users call them.

Loops over layers and rematerialised functions are written out; jax.nn's own functions are made of `custom_jvp`.
"""


@contextmanager
def unopened() -> Iterator[list[str]]:
    """Record 'while_loop (port.py:12)' for each such operation used inside, in call order."""
    found: dict[str, None] = {}

    def note(operation: str, _: Mapping[str, Any]) -> None:
        if name := UNOPENED.get(operation):
            found[f"{name} ({line_here()})"] = None

    listed: list[str] = []
    with bound_operations(note):
        yield listed
    listed += found


class HiddenCallsError(Exception):
    """Raised if calls inside a cond or a while_loop cannot be seen because jit traces the model."""


@contextmanager
def none_hidden(visits: Visits) -> Iterator[None]:
    """Raise HiddenCallsError at a cond or a while_loop with calls of modules inside, if jit traces the model."""

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
    """True if jit traces the running code, for its gradients too."""
    return isinstance(jnp.zeros(()), Tracer)


REMAT3 = "remat3"
"""Function that `jax.checkpoint` calls in jax 0.12 if `jax_remat3` is set."""


class _AsItIs:
    """Replaces the trace of a rematerialised function, its primitive, and the tree of its output, so that the function runs as
    it is."""

    @staticmethod
    def trace(f: Callable[..., Any], inputs: Any, *_: Any) -> tuple[Callable[..., Any], tuple[()], "_AsItIs"]:
        """Return the function of flat arguments, no constants, and the tree of its output."""

        def flat(arrays: tuple[Any, ...]) -> Any:
            args, kwargs = inputs.unflatten(arrays)
            return f(*args, **kwargs)

        return flat, (), _AsItIs()

    @staticmethod
    def bind(*arrays: Any, jaxpr: Callable[..., Any], **_: Any) -> Any:
        """Run the function."""
        return jaxpr(arrays)

    @staticmethod
    def unflatten(output: Any) -> Any:
        """Return the output unchanged: it was never flattened."""
        return output


@contextmanager
def nothing_rematerialised() -> Iterator[None]:
    """Context manager: rematerialised functions run as they are, also those wrapped before, such as methods under `nnx.remat`.

    JAX looks up what it traces and binds in its own module when they are called, so that it can be patched there. If a version
    of JAX does otherwise, nothing changes.
    """
    module = inspect.unwrap(jax.checkpoint).__globals__
    instead: dict[str, Any] = {"_trace_to_jaxpr": _AsItIs.trace, "remat_p": _AsItIs}
    if not instead.keys() <= module.keys():
        instead = {}
    if REMAT3 in module:
        instead[REMAT3] = lambda f, **_: f
    with mock.patch.dict(module, instead):
        yield


PLATFORMS = {"gpu": ("cuda", "rocm")}
"""Backend -> the platform names that code chooses by, if they differ from the backend's."""


@contextmanager
def written_out() -> Iterator[None]:
    """Run JAX without nested jits, scans and rematerialisation; code that chooses by platform runs only the branch of this
    machine."""
    bind_as_it_is, backend = Primitive.bind, jax.default_backend()
    here = set(PLATFORMS.get(backend, (backend,)))

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if operation.name == "platform_index":
            return next(i for i, platforms in enumerate(how["platforms"]) if platforms is None or here & set(platforms))
        return bind_as_it_is(operation, *args, **how)

    with jax.disable_jit(), nothing_rematerialised(), exact_operations(), mock.patch.object(Primitive, "bind", bind):
        yield


COMPILED = "xla_primitive_callable"
"""Name of JAX's function that compiles an operation that runs by itself."""


@contextmanager
def exact_operations() -> Iterator[None]:
    """Context manager: operations that run by themselves, and bodies of loops, get the compiler options of a comparison's
    programs.

    If a version of JAX does otherwise, nothing changes.
    """
    module = getattr(getattr(reduce_sum_p.impl, "func", None), "__globals__", {})
    with mock.patch.dict(module, {COMPILED: _exactly} if COMPILED in module else {}):
        yield


@functools.cache
def _exactly(operation: Primitive, **how: Any) -> Callable[..., Any]:
    return jax.jit(lambda *args: operation.bind(*args, **how), compiler_options=exact())
