"""Random numbers that a model draws while it runs: the other side cannot have the same ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxformer.parity.capture.bound_operations import bound_operations
from jaxformer.parity.capture.source_lines import line_here
from jaxformer.parity.capture.unopened import UNOPENED
from jaxformer.parity.numerics.torch_operations import torch_operations

JAX_DRAWS = ("random_bits", "random_gamma", "rng_bit_generator", "rng_uniform")
"""JAX's operations that give random numbers."""


@contextmanager
def jax_draws() -> Iterator[list[str]]:
    """The lines of the user's code that draw in JAX, also inside of a loop or a branch; shapes alone, as Linen asks its
    initialisers for, are not drawn."""
    places: list[str] = []

    def note(operation: str, how: Mapping[str, Any]) -> None:
        if operation in JAX_DRAWS or (operation in UNOPENED and does_draw(how)):
            places.append(line_here())

    with bound_operations(note):
        yield places


def does_draw(how: Mapping[str, Any]) -> bool:
    """Whether one of the programs among an operation's parameters draws."""
    programs = (program for value in how.values() for program in (value if isinstance(value, tuple | list) else (value,)))
    steps = (step for program in programs for step in getattr(getattr(program, "jaxpr", program), "eqns", ()))
    return any(step.primitive.name in JAX_DRAWS or does_draw(step.params) for step in steps)


@contextmanager
def torch_draws() -> Iterator[list[str]]:
    """The lines of the user's code that draw in torch; fused attention, which may drop weights, is left out."""
    import torch

    places: list[str] = []

    def noting(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in operation.tags and "attention" not in str(operation):
            places.append(line_here())
        return operation(*args, **kwargs)

    with torch_operations(noting):
        yield places
