"""Shared dropout: both sides drop the same units, so that training with dropout is compared exactly.

output, masks = with_masks(model)(tokens, key=key)
with feed_masks(masks):
    reference = torch_model.train()(torch.from_numpy(tokens))
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.numerics.float64 import torch_operations
from jaxformer.parity.trace.transformations import written_out
from jaxformer.runtime import random

COINCIDENCE = 1e-12
"""Probability of two masks being equal by chance below which equal masks are an error."""
ENOUGH = 4096
"""Number of units of each mask that are compared."""
BESIDES = "torch drew random numbers besides its dropout; only dropout can be made the same on both sides"
UNSHARED = "torch drops out and JAX does not; is the JAX model in training mode, with a key? Or give torch's dropout p=0"


def with_masks(f: Callable[..., Any]) -> Callable[..., tuple[Any, list[jax.Array]]]:
    """Wrap f to return (output, keep masks): its masks in call order, True = kept. The result is pure, so it can be jitted.

    Recorded are all draws of `jaxformer.runtime.random` and of `jax.random.bernoulli`, which flax's Dropout and attention use.
    jits and scans in f are written out, and nothing is rematerialised: a mask could not leave them.
    """

    def recording(*args: Any, **kwargs: Any) -> tuple[Any, list[jax.Array]]:
        masks: list[jax.Array] = []

        def recorded(draw: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
            @wraps(draw)
            def drawn(*given: Any, **named: Any) -> jax.Array:
                masks.append(draw(*given, **named))
                return masks[-1]

            return drawn

        with (
            mock.patch.object(random, "dropout_mask", recorded(random.dropout_mask)),
            mock.patch.object(jax.random, "bernoulli", recorded(jax.random.bernoulli)),
            written_out(),
        ):
            return f(*args, **kwargs), masks

    return recording


def check_masks(masks: Sequence[np.ndarray | jax.Array]) -> None:
    """Raise ParityError if two masks are equal, in the order of their units: one key was used twice.

    torch draws each mask independently. Masks fed to both sides would hide the error.
    """
    units = [np.ravel(mask)[:ENOUGH] for mask in masks]
    for (i, one), (j, other) in itertools.combinations(enumerate(units), 2):
        size = min(one.size, other.size)
        kept = np.mean(one[:size]) if size else 1.0
        if np.array_equal(one[:size], other[:size]) and (kept**2 + (1 - kept) ** 2) ** size < COINCIDENCE:
            raise ParityError(f"JAX drops the same units in draws {i} and {j}; give each site and each step a key of its own")


@contextmanager
def feed_masks(masks: Sequence[np.ndarray | jax.Array]) -> Iterator[None]:
    """Run torch with these dropout masks: every dropout takes the next mask instead of drawing one.

    It covers nn.Dropout, F.dropout, and the dropout of nn.MultiheadAttention and scaled_dot_product_attention. Raises
    ParityError for a mask of another shape, for too few masks and, when the context ends, for too many masks or if torch drew
    random numbers in another way.
    """
    import torch

    waiting = iter(masks)

    def feeding(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Feed the next mask where torch fills a tensor with draws, as every kind of dropout does on the CPU."""
        if operation is not torch.ops.aten.bernoulli_.float:
            return operation(*args, **kwargs)
        mask = next(waiting, None)
        if mask is None:
            raise ParityError(f"torch drops out more often than the {len(masks)} times that JAX does")
        return args[0].copy_(torch.from_numpy(_fitting(np.array(mask), tuple(args[0].shape))))

    before = torch.get_rng_state()
    with torch_operations(feeding) if masks else nullcontext():
        yield
    left = len(list(waiting))
    if left:
        raise ParityError(
            f"{left} of {len(masks)} dropout masks were not used by torch; does it drop as often, in training mode?"
        )
    if not torch.equal(before, torch.get_rng_state()):
        raise ParityError(BESIDES if masks else UNSHARED)


def _fitting(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Reshape a mask to torch's shape, in which leading axes may be merged."""
    if mask.size == np.prod(shape) and mask.shape[-2:] == shape[-2:]:
        return mask.reshape(shape)
    if mask.ndim == len(shape) and all(m in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        hint = "; JAX drops whole axes of units together, torch each by itself: switch broadcasting off"
    else:
        hint = ""
    raise ParityError(f"dropout mask of shape {mask.shape} for units of shape {shape}{hint}")
