"""JAX code written out while it is traced: calls inside a program of its own could not be seen, nor values leave it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
from jax.extend.core import Primitive

from jaxformer.parity.capture.rematerialised import nothing_rematerialised

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

    with jax.disable_jit(), nothing_rematerialised(), mock.patch.object(Primitive, "bind", bind):
        yield
