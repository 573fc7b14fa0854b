"""JAX's transformations of code: those that are written out while it is traced, so that calls inside are seen, and those that a
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
    """Inside, `note` is called with the name and the parameters of each operation before it runs."""
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


REMAT3 = "remat3"
"""What `jax.checkpoint` goes through where jax 0.12 is told to by `jax_remat3`."""


class _AsItIs:
    """Stands for the trace of a rematerialised function, its operation, and the tree of its output."""

    @staticmethod
    def trace(f: Callable[..., Any], inputs: Any, *_: Any) -> tuple[Callable[..., Any], tuple[()], "_AsItIs"]:
        """The function of flat arguments, no constants, and the tree of its output."""

        def flat(arrays: tuple[Any, ...]) -> Any:
            args, kwargs = inputs.unflatten(arrays)
            return f(*args, **kwargs)

        return flat, (), _AsItIs()

    @staticmethod
    def bind(*arrays: Any, jaxpr: Callable[..., Any], **_: Any) -> Any:
        """Run it."""
        return jaxpr(arrays)

    @staticmethod
    def unflatten(output: Any) -> Any:
        """It was never flat."""
        return output


@contextmanager
def nothing_rematerialised() -> Iterator[None]:
    """Functions that were rematerialised before this, as methods under `nnx.remat` are, run as they are too: JAX looks up what
    it traces and binds in its own module when they are called. Where a version of JAX does it otherwise, nothing changes."""
    module = inspect.unwrap(jax.checkpoint).__globals__
    instead: dict[str, Any] = {"_trace_to_jaxpr": _AsItIs.trace, "remat_p": _AsItIs}
    if not instead.keys() <= module.keys():
        instead = {}
    if REMAT3 in module:
        instead[REMAT3] = lambda f, **_: f
    with mock.patch.dict(module, instead):
        yield


PLATFORMS = {"gpu": ("cuda", "rocm")}
"""A backend -> the platforms that code chooses by, where they have other names."""


@contextmanager
def written_out() -> Iterator[None]:
    """Without nested jits and scans, and with nothing rematerialised; where code chooses by platform, the branch of this
    machine's stands alone."""
    bind_as_it_is, backend = Primitive.bind, jax.default_backend()
    here = set(PLATFORMS.get(backend, (backend,)))

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if operation.name == "platform_index":
            return next(i for i, platforms in enumerate(how["platforms"]) if platforms is None or here & set(platforms))
        return bind_as_it_is(operation, *args, **how)

    with jax.disable_jit(), nothing_rematerialised(), exact_operations(), mock.patch.object(Primitive, "bind", bind):
        yield


COMPILED = "xla_primitive_callable"
"""JAX's function that compiles an operation which runs by itself."""


@contextmanager
def exact_operations() -> Iterator[None]:
    """Inside, operations that run by themselves are compiled as programs of a comparison are, and so are the bodies of loops.
    Where a version of JAX does it otherwise, nothing changes."""
    module = getattr(getattr(reduce_sum_p.impl, "func", None), "__globals__", {})
    with mock.patch.dict(module, {COMPILED: _exactly} if COMPILED in module else {}):
        yield


@functools.cache
def _exactly(operation: Primitive, **how: Any) -> Callable[..., Any]:
    return jax.jit(lambda *args: operation.bind(*args, **how), compiler_options=exact())
