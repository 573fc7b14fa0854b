"""`jax.checkpoint` and all that is made of it, as the function itself: it gives the same, and what it calls is seen."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax

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
