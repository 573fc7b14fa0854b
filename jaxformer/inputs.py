"""Token ids are checked here, on the host, before an array reaches a device: there, bad ids clamp or wrap without a word.

Texts are checked before they become ids.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxformer.errors import InputError


def check_tokens(tokens: Any, vocab_size: int, longest: int, *, name: str = "tokens") -> None:
    """Ids `B T`: integers, 1 <= T <= longest; where the values are at hand (a numpy array), 0 <= id < vocab_size."""
    if not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{name}: type {tokens.dtype}; give integer ids")
    if len(tokens.shape) != 2:
        raise InputError(f"{name}: shape {tuple(tokens.shape)}; give ids of shape (batch, length)")
    if not tokens.shape[0]:
        raise InputError(f"{name}: shape {tuple(tokens.shape)}; give at least one row")
    if not 1 <= tokens.shape[1] <= longest:
        raise InputError(f"{name}: length {tokens.shape[1]}; give between 1 and {longest}, the longest this model takes")
    if isinstance(tokens, np.ndarray) and tokens.size:
        bad = np.argwhere((tokens < 0) | (tokens >= vocab_size))
        if bad.size:
            row, column = bad[0]
            raise InputError(
                f"{name}[{row}, {column}] = {tokens[row, column]} is out of range; give ids from 0 to {vocab_size - 1}"
            )


def check_rows(target: int, memory: int) -> None:
    """Every target has a memory of its own."""
    if target != memory:
        raise InputError(f"target has {target} rows and its memory {memory}; give one source to each target")


def check_token_types(types: Any, tokens: Any, n_types: int, longest: int) -> None:
    """None, or for each of the tokens `B T` one of the types that the model has."""
    if types is None:
        return
    if not n_types:
        raise InputError("this encoder has no token types; build it with token_types = 2, or give none")
    check_tokens(types, n_types, longest, name="token_types")
    if tuple(types.shape) != tuple(tokens.shape):
        raise InputError(
            f"token_types have shape {tuple(types.shape)}, tokens {tuple(tokens.shape)}; give a type to each token"
        )


def check_cache(found: tuple[int, int], wanted: tuple[int, int]) -> None:
    """A cache holds each sequence for every layer: JAX would write a missing layer over the last without a word."""
    if found[0] != wanted[0]:
        raise InputError(
            f"the cache is made for {found[0]} layers, the stack has {wanted[0]}; make it from the stack's configuration"
        )
    if found[1] != wanted[1]:
        raise InputError(f"the cache holds {found[1]} sequences, {wanted[1]} are given; make it for as many")


def check_memory(memory: Any, d_model: int) -> None:
    """A source's states `B S D`."""
    shape = getattr(memory, "shape", ())
    if len(shape) != 3 or shape[-1] != d_model:
        raise InputError(f"memory: shape {tuple(shape)}; give what encode returns, (batch, length, {d_model})")


def check_positions(positions: Any, tokens: tuple[int, int], longest: int) -> None:
    """None, or integers `T` for all rows of tokens `B T`, as `1 T`, or for each, as `B T`; below `longest` where known."""
    if positions is None:
        return
    if not hasattr(positions, "dtype"):
        raise InputError(f"positions: a {type(positions).__name__}; give an array")
    if not np.issubdtype(np.dtype(str(positions.dtype).removeprefix("torch.")), np.integer):
        raise InputError(f"positions: type {positions.dtype}; give integers")
    if tuple(positions.shape) not in ((1, tokens[1]), tokens):
        raise InputError(f"positions: shape {tuple(positions.shape)}; give {tokens}, or (1, {tokens[1]}) for all rows")
    if isinstance(positions, np.ndarray) and (bad := np.argwhere((positions < 0) | (positions >= longest))).size:
        row, column = bad[0]
        raise InputError(f"positions[{row}, {column}] = {positions[row, column]} is out of range; give 0 to {longest - 1}")


def check_source_mask(mask: Any, memory: tuple[int, ...], n_heads: int) -> None:
    """One row for all queries: those of the source and those of the target read it. The memory is `B S D`."""
    check_mask(mask, (memory[0], n_heads, 1, memory[1]), name="source mask")


def check_mask(mask: Any, shape: tuple[int, int, int, int], *, name: str = "mask") -> None:
    """None, or booleans of rank 4 where each axis has the size in `shape` (B, N, T, S), or 1."""
    if mask is None:
        return
    if not hasattr(mask, "dtype"):
        raise InputError(f"{name} is a {type(mask).__name__}; give an array of booleans, True = may attend")
    if str(mask.dtype).removeprefix("torch.") != "bool":
        raise InputError(f"{name} is of type {mask.dtype}; give booleans, True = may attend")
    found = tuple(mask.shape)
    if len(found) != 4 or any(size not in (1, wanted) for size, wanted in zip(found, shape, strict=True)):
        raise InputError(f"{name} has shape {found}; give {shape} (batch, heads, queries, keys), or 1 for any of them")


def check_text(text: object, *, name: str) -> None:
    """A string that has a UTF-8 form."""
    if not isinstance(text, str):
        raise InputError(f"{name} is a {type(text).__name__}; give a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"character {text[error.start]!r} (position {error.start})"
        raise InputError(f"{name}: {found} is half a surrogate pair and has no UTF-8 form; remove it") from None


def check_several(texts: object, *, name: str) -> None:
    """Several texts: one string would pass for a list of its characters."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"{name} is a {type(texts).__name__}; give a list of strings")
