"""JAX code written out while it is traced: calls inside a program of its own could not be seen, nor values leave it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
from jax.extend.core import Primitive
from jax.extend.core.primitives import reduce_sum_p

from jaxformer.parity.capture.rematerialised import nothing_rematerialised
from jaxformer.runtime.xla_options import exact

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
