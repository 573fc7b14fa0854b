"""JAX's draws in training mode: each one is noted with its module, and may be given torch's numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax.core.tracers import current_trace

from jaxformer import keep_mask
from jaxformer.parity.capture.batched_values import is_mapped, outside_of_vmaps
from jaxformer.parity.capture.draws import DROPOUT, NORMAL, UNIFORM, in_range
from jaxformer.parity.capture.source_lines import line_here

Seen = Callable[[str, float, Any, str], Any]
"""seen(kind, keep, numbers, line): a draw with what is mapped by vmaps in front; what it gives is used instead."""


@contextmanager
def seen_draws(seen: Seen) -> Iterator[None]:
    """Inside, `seen` decides what jax.random's bernoulli, uniform and normal give, as flax's and other models' dropouts draw.

    What is drawn while another program is traced, as Linen's initialisers for their shapes, is not seen.
    """
    level = current_trace()

    def watched(draw: Callable[..., Any], read: Callable[..., tuple[str, float, Callable[[Any], Any]]]) -> Callable[..., Any]:
        @wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            mapped = is_mapped((args, kwargs))
            if not (mapped or current_trace() == level):
                return draw(*args, **kwargs)
            kind, keep, finished = read(*args, **kwargs)
            line = line_here()
            if mapped:
                numbers = draw(*args, **kwargs)
            else:
                shape = jax.eval_shape(lambda: draw(*args, **kwargs))
                numbers = jnp.zeros(shape.shape, shape.dtype)
            return outside_of_vmaps(lambda value: finished(seen(kind, keep, value, line)).astype(value.dtype), numbers)

        return drawn

    with ExitStack() as stack:
        for owner, name, read in (
            (keep_mask, "keep_mask", _keep_mask),
            (jax.random, "bernoulli", _bernoulli),
            (jax.random, "uniform", _uniform),
            (jax.random, "normal", _normal),
        ):
            stack.enter_context(mock.patch.object(owner, name, watched(getattr(owner, name), read)))
        yield


def _keep_mask(key: Any, rate: float, *_: Any, **__: Any) -> tuple[str, float, Callable[[Any], Any]]:
    return DROPOUT, 1 - float(rate), lambda numbers: numbers


def _bernoulli(key: Any, p: Any = 0.5, *_: Any, **__: Any) -> tuple[str, float, Callable[[Any], Any]]:
    keep = _plain(p)
    return (UNIFORM, 1.0, lambda numbers: numbers < p) if math.isnan(keep) else (DROPOUT, keep, lambda numbers: numbers)


def _uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, **_: Any
) -> tuple[str, float, Callable[[Any], Any]]:
    return UNIFORM, 1.0, lambda numbers: in_range(numbers, minval, maxval)


def _normal(key: Any, *_: Any, **__: Any) -> tuple[str, float, Callable[[Any], Any]]:
    return NORMAL, 1.0, lambda numbers: numbers


def _plain(p: Any) -> float:
    """A probability that is one known number; NaN elsewhere."""
    try:
        return float(p)
    except (TypeError, jax.errors.JAXTypeError):
        return float("nan")


@contextmanager
def fed_draws(numbers: Sequence[np.ndarray | None]) -> Iterator[None]:
    """Inside, the draws give these numbers, in their order; None, and what comes after the last, gives numbers of its own:
    every unit is kept, or zeros."""
    waiting = iter(numbers)

    def seen(kind: str, keep: float, value: Any, line: str) -> Any:
        instead = next(waiting, None)
        if instead is None or instead.shape != value.shape:
            return jnp.ones_like(value) if kind == DROPOUT else jnp.zeros_like(value)
        return jnp.asarray(instead)

    with seen_draws(seen):
        yield
