"""Random numbers that a model draws while it runs: the other side cannot have the same ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from flax.core.tracers import current_trace
from jax.extend.core import Primitive

from jaxformer.parity.capture.source_lines import line_here

JAX_DRAWS = ("random_bits", "random_gamma", "rng_bit_generator", "rng_uniform")
"""JAX's operations that give random numbers."""


@contextmanager
def jax_draws() -> Iterator[list[str]]:
    """The lines of the user's code that draw in JAX; shapes alone, as Linen asks its initialisers for, are not drawn."""
    bind_as_it_is, level = Primitive.bind, current_trace()
    places: list[str] = []

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if operation.name in JAX_DRAWS and current_trace() == level:
            places.append(line_here())
        return bind_as_it_is(operation, *args, **how)

    with mock.patch.object(Primitive, "bind", bind):
        yield places


@contextmanager
def torch_draws() -> Iterator[list[str]]:
    """The lines of the user's code that draw in torch; fused attention, which may drop weights, is left out."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    places: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.nondeterministic_seeded in operation.tags and "attention" not in str(operation):
                places.append(line_here())
            return operation(*args, **(kwargs or {}))

    with Noting():
        yield places
