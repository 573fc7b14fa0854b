"""Random numbers that Python code draws on the host, of numpy or of `random`, while a JAX model is traced."""

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import numpy as np

from jaxformer.parity.capture.source_lines import line_here

HELD = "a numpy generator that the model holds"
"""Where no line is known."""


@contextmanager
def host_draws() -> Iterator[list[str]]:
    """The lines of the user's code that draw so; generators with a seed of their own are among them only if the model holds
    them, since each run goes on where the last one ended."""
    places: list[str] = []
    before = [(each, repr(each.bit_generator.state)) for each in generators()]

    def noting(draw: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            if draw is not np.random.default_rng or not (args or kwargs):
                places.append(line_here())
            return draw(*args, **kwargs)

        return drawn

    owners = [(np.random, name) for name in np.random.__all__ if name[0].islower()]
    owners += [(random, name) for name in random.__all__ if name[0].islower()]
    owners = [(owner, name) for owner, name in owners if name not in ("seed", "get_state", "set_state", "getstate", "setstate")]
    with ExitStack() as stack:
        for owner, name in [*owners, (np.random, "default_rng")]:
            if callable(draw := getattr(owner, name)):
                stack.enter_context(mock.patch.object(owner, name, noting(draw)))
        yield places
    if not places and any(repr(each.bit_generator.state) != state for each, state in before):
        places.append(HELD)


def generators() -> list[Any]:
    """numpy's, that code holds."""
    return [each for each in gc.get_objects() if type(each) is np.random.Generator]
