"""Prompts and sources on the host, before a compiled program sees them: checked, and padded to one of few lengths.

torch compiles nothing: the PyTorch twin has no such module.
"""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxformer.config.models import ModelConfig
from jaxformer.errors import InputError, NonFiniteError
from jaxformer.validation.arrays import Tokens
from jaxformer.validation.fields import check_size, whole

SMALLEST_BUCKET = 16
MOST_TOKENS = 2**20
"""Most tokens of one call; a longer text is generated piece by piece."""
NEVER = np.int32(2**31 - 1)
"""Step at which something happened, as long as it has not."""
NONE = np.int32(-1)
"""Placeholder where there is no token id."""


def real(number: float | int) -> np.floating:
    """Convert a number to a float of JAX's default width, so that every number of a setting has the same dtype."""
    return jnp.result_type(float).type(number)


def bucket(n: int) -> int:
    """Round up to a power of two, at least SMALLEST_BUCKET, so that nearby lengths share one compilation."""
    return max(SMALLEST_BUCKET, 1 << (n - 1).bit_length()) if n else SMALLEST_BUCKET


def check_length(n_tokens: int | np.integer, most: int = MOST_TOKENS, least: int = 0) -> int:
    """Return the checked number of tokens to generate; numpy's integers are accepted."""
    check_size("n_tokens", n_tokens := whole(n_tokens), least=least)
    if n_tokens > most:
        raise InputError(f"n_tokens = {n_tokens} is more than the {most} tokens that can be generated at once; ask for fewer")
    return int(n_tokens)


def check_crossing(config: ModelConfig, start: int, n_tokens: int) -> None:
    """Raise InputError if LongRoPE's angles, which are those of all tokens, would change while tokens are generated."""
    original = config.rotary_original_context
    if config.rotary_scaling == "longrope" and original is not None and start <= original < start + n_tokens - 1:
        raise InputError(
            f"n_tokens = {n_tokens} after {start} of the prompt pass rotary_original_context = {original}, where longrope "
            f"changes the angles of all tokens, also of cached ones; ask for at most {original + 1 - start}, or give a longer "
            "prompt"
        )


def check_outside_jit(model: Any, ids: Any) -> None:
    """Raise InputError under a transformation: decoding reads ids on the host and compiles a program of its own."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((model, ids))):
        raise InputError("writing compiles a program of its own, and reads ids on the host; call it outside of jit")


def check_id(name: str, token: Any, vocab_size: int) -> None:
    """Raise InputError unless `token` is a token id."""
    whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
    if not whole or not 0 <= token < vocab_size:
        raise InputError(f"{name} = {token!r:.30} is not a token id; give a whole number from 0 to {vocab_size - 1}")


def check_valid(valid: Tokens | None, tokens: np.ndarray, name: str) -> np.ndarray:
    """Return `B T`, True for tokens that are not padding, all for None; InputError for a row that is all padding."""
    if valid is None:
        return np.ones(tokens.shape, bool)
    valid = np.asarray(valid)
    if valid.dtype != bool or valid.shape != tokens.shape:
        wanted = f"booleans of shape {tokens.shape}, True = no padding"
        raise InputError(f"valid is {valid.dtype} of shape {valid.shape} for this {name}; give {wanted}")
    empty = np.flatnonzero(~valid.any(1))
    if empty.size:
        raise InputError(f"{name}[{empty[0]}] is nothing but padding; give at least one token")
    return valid


def padded_left(tokens: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move all padding to the left; return the rows, as narrow as the longest one, and the padding that each has."""
    order = np.argsort(valid, axis=1, kind="stable")
    padding = (~valid).sum(1)
    shared = padding.min()
    return np.take_along_axis(tokens, order, 1)[:, shared:], (padding - shared).astype(np.int32)


def moved_right(tokens: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move all padding to the right, so that positions count no padding; return the rows, and where they are valid."""
    order = np.argsort(~valid, axis=1, kind="stable")
    return np.take_along_axis(tokens, order, 1), np.take_along_axis(valid, order, 1)


def padded_right(array: np.ndarray, width: int) -> np.ndarray:
    """Pad the rows with zeros, or False, to a width."""
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))


def check_broken(broken: int) -> None:
    """Raise NonFiniteError if logits became NaN."""
    if broken != NEVER:
        raise NonFiniteError(f"the logits of token {broken} are NaN; the model's weights are broken, train it anew")


def check_stuck(stuck: int) -> None:
    """Raise InputError if the rules left a row no token."""
    if stuck != NEVER:
        raise InputError(f"the rules leave a row no token at place {stuck}; suppress fewer, or allow repeated runs")
