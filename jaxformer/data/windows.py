"""A long text as windows of `context` tokens, each with the tokens that follow."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from jaxformer.config.settings import IGNORE_INDEX
from jaxformer.errors import InputError


class Windows(NamedTuple):
    """Inputs and targets, both `B T`; a target below 0 is not counted."""

    inputs: Int[Array, "B T"] | np.ndarray
    targets: Int[Array, "B T"] | np.ndarray


def split(ids: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """The first nine tenths to train on, the rest to validate."""
    cut = len(ids) * 9 // 10
    shorter = min(cut, len(ids) - cut)
    if shorter <= context:
        raise InputError(
            f"the text has {len(ids)} tokens, its shorter split {shorter}; a window takes {context + 1}: give a longer text or "
            f"a smaller context"
        )
    return ids[:cut], ids[cut:]


def draw_windows(ids: Int[Array, " X"], key: PRNGKeyArray, batch: int, context: int) -> Windows:
    """`batch` windows at random places: a pure function of the key, on the device."""
    starts = jax.random.randint(key, (batch, 1), 0, ids.shape[0] - context, jnp.int32)
    windows = ids[starts + jnp.arange(context + 1, dtype=jnp.int32)[None]]
    return Windows(windows[:, :-1], windows[:, 1:])


def cover(ids: np.ndarray, batch: int, context: int) -> Windows:
    """The whole text, each token but the first predicted once: windows side by side as `X B T`, the last ones filled up."""
    rows = -(-(len(ids) - 1) // context)
    rows += -rows % batch
    inputs = np.zeros(rows * context, np.int32)
    targets = np.full(rows * context, IGNORE_INDEX, np.int32)
    inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
    return Windows(inputs.reshape(-1, batch, context), targets.reshape(-1, batch, context))
