"""Checks of inputs on the host: on a device, out-of-range token ids would be clamped or wrapped silently.

Texts are checked before they become ids.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from jaxformer.config.models import BlockConfig, EncoderDecoderConfig
from jaxformer.errors import ConfigError, InputError, type_of
from jaxformer.validation.fields import check_size, whole

C = TypeVar("C")

Shape = tuple[int, int, int, int]
"""Shape of attention scores: B, N, T, S."""
CacheShape = tuple[int, int, int, int]
"""Shape of a cache: layers, sequences, key/value heads, head width."""


def check_tokens(tokens: Any, vocab_size: int, longest: int, *, name: str = "tokens") -> None:
    """Check ids `B T`: integers, 1 <= T <= longest, and for a numpy array, whose values are known, 0 <= id < vocab_size."""
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


def check_frames(frames: Any, n_features: int | None, context: int) -> None:
    """Check frames `B _ M` of features: floats, two to a token, and finite if they are a numpy array, whose values are
    known."""
    longest, shape = 2 * context, tuple(frames.shape)
    if not np.issubdtype(frames.dtype, np.floating) and "float" not in str(frames.dtype):
        raise InputError(f"source: type {frames.dtype}; give frames of floats, as of a log-mel spectrogram")
    if len(shape) != 3 or shape[2] != n_features or not shape[0]:
        raise InputError(f"source: shape {shape}; give frames of shape (batch, frames, {n_features})")
    if not 1 <= shape[1] <= longest:
        raise InputError(f"source: {shape[1]} frames; give between 1 and {longest}, the most this model takes")
    if isinstance(frames, np.ndarray) and not np.isfinite(frames).all():
        row, frame, feature = np.argwhere(~np.isfinite(frames))[0]
        raise InputError(f"source[{row}, {frame}, {feature}] = {frames[row, frame, feature]}; give finite features")


def check_rows(target: int, memory: int) -> None:
    """Check that there is one memory for each target."""
    if target != memory:
        raise InputError(f"target has {target} rows and its memory {memory}; give one source to each target")


def check_token_types(types: Any, tokens: Any, n_types: int, longest: int) -> None:
    """Check token types: None, or one of the model's types for each of the tokens `B T`."""
    if types is None:
        return
    if not n_types:
        raise InputError("this encoder has no token types; build it with token_types = 2, or give none")
    check_tokens(types, n_types, longest, name="token_types")
    if tuple(types.shape) != tuple(tokens.shape):
        raise InputError(
            f"token_types have shape {tuple(types.shape)}, tokens {tuple(tokens.shape)}; give a type to each token"
        )


def check_cache(found: CacheShape, wanted: CacheShape) -> None:
    """Check the shape of a cache: JAX would silently write a missing layer over the last one."""
    if found[0] != wanted[0]:
        raise InputError(
            f"the cache is made for {found[0]} layers, the stack has {wanted[0]}; make it from the stack's configuration"
        )
    if found[1] != wanted[1]:
        raise InputError(f"the cache holds {found[1]} sequences, {wanted[1]} are given; make it for as many")
    if found[2:] != wanted[2:]:
        held, own = (f"{heads} key/value heads of width {width}" for _, _, heads, width in (found, wanted))
        raise InputError(f"the cache is made for {held}, the stack has {own}; make it from the stack's configuration")


def check_is_cache(cache: Any) -> None:
    """Raise InputError for a value that `empty_cache` cannot have returned."""
    if not hasattr(cache, "capacity"):
        raise InputError(f"the cache is {type_of(cache)}; give what empty_cache(model, batch, capacity) returns")


def cached_blocks(model: Any) -> BlockConfig:
    """Return the settings of the blocks that a cache is for, from a model or its configuration; of an encoder-decoder, its
    decoder's."""
    config = getattr(model, "config", model)
    if not isinstance(config, BlockConfig):
        raise InputError(f"{type_of(model)} has no configuration to make a cache by; give a model, or a configuration")
    return config.decoder if isinstance(config, EncoderDecoderConfig) else config


def check_cache_size(batch: int, capacity: int) -> None:
    """Check the size of a cache: at least one sequence and one token."""
    check_size("batch", whole(batch))
    check_size("capacity", whole(capacity))


def check_cache_type(found: Any, wanted: Any) -> None:
    """Check the type of a cache: another type would silently narrow or widen what the model computes."""
    if found != wanted:
        raise InputError(
            f"the cache is of type {found}, the keys and values of type {wanted}; make it with empty_cache(model, ...), "
            f"or with dtype = {str(wanted).removeprefix('torch.')}"
        )


def check_memory(memory: Any, d_model: int) -> None:
    """Check the shape of a memory, the states of a source: `B S D`."""
    shape = getattr(memory, "shape", ())
    if len(shape) != 3 or shape[-1] != d_model:
        raise InputError(f"memory: shape {tuple(shape)}; give what encode returns, (batch, length, {d_model})")


def source_widths(d_model: int, cross: bool, kdim: int | None, vdim: int | None) -> tuple[int, int]:
    """Return the widths of the sources of keys and values; ConfigError for `kdim` or `vdim` without cross-attention."""
    for name, width in (("kdim", kdim), ("vdim", vdim)):
        if width is not None:
            check_size(name, width)
            if not cross:
                raise ConfigError(f"{name} = {width} is the width of a memory; build with cross=True to attend to one")
    return d_model if kdim is None else kdim, d_model if vdim is None else vdim


def check_sources(keys: Any, values: Any, widths: tuple[int, int]) -> None:
    """Check the shapes of the sources of keys and values: `B S` and these widths."""
    for name, source, width in zip(("keys", "values"), (keys, values), widths, strict=True):
        if len(source.shape) != 3 or source.shape[-1] != width:
            how = "" if widths[0] == widths[1] else "; keys and values have a source each: memory = (keys, values)"
            raise InputError(f"the source of {name}: shape {tuple(source.shape)}; give (batch, length, {width}){how}")
    if keys.shape[:2] != values.shape[:2]:
        raise InputError(
            f"the source of keys is {tuple(keys.shape[:2])} (batch, length), that of values {tuple(values.shape[:2])}; "
            "give each key its value"
        )


def memory_shape(memory: Any) -> tuple[int, int]:
    """Return rows B and length S of a memory: states, a pair (keys, values), or projected keys and values of one or all
    layers."""
    while isinstance(memory, tuple):
        memory = memory[0]
    if not hasattr(memory, "keys"):
        return memory.shape[:2]
    keys = memory.keys[0] if isinstance(memory.keys, tuple) else memory.keys
    return keys.shape[0] // memory.heads, keys.shape[1]


def check_room(cache: Any, n_tokens: int, context: int) -> None:
    """Check that a cache of known length can hold this many more tokens, within its capacity and the model's context."""
    if cache is not None:
        check_is_cache(cache)
        held = int(cache.length)
        if held < 0 or "int" not in str(getattr(cache.length, "dtype", type(cache.length))):
            raise InputError(f"the cache holds {cache.length} tokens; give one that empty_cache, or a model, returned")
        if held + n_tokens > cache.capacity:
            raise InputError(f"the cache holds {held} tokens and {n_tokens} more exceed its {cache.capacity}")
        if held + n_tokens > context:
            raise InputError(f"the cache holds {held} tokens and {n_tokens} more exceed the model's context of {context}")


def check_positions(positions: Any, tokens: tuple[int, int], longest: int) -> None:
    """Check positions: None, or integers `1 T` for all rows of the tokens, or `B T`; below `longest` if their values are
    known."""
    if positions is None:
        return
    if not hasattr(positions, "dtype"):
        raise InputError(f"positions: {type_of(positions)}; give an array")
    if not np.issubdtype(np.dtype(str(positions.dtype).removeprefix("torch.")), np.integer):
        raise InputError(f"positions: type {positions.dtype}; give integers")
    if tuple(positions.shape) not in ((1, tokens[1]), tokens):
        raise InputError(f"positions: shape {tuple(positions.shape)}; give {tokens}, or (1, {tokens[1]}) for all rows")
    if isinstance(positions, np.ndarray) and (bad := np.argwhere((positions < 0) | (positions >= longest))).size:
        row, column = bad[0]
        raise InputError(f"positions[{row}, {column}] = {positions[row, column]} is out of range; give 0 to {longest - 1}")


def check_source_mask(mask: Any, memory: tuple[int, ...], n_heads: int) -> None:
    """Check a source mask: one row for all queries, because source and target tokens both use it. The memory is `B S D`."""
    check_mask(mask, (memory[0], n_heads, 1, memory[1]), name="source mask")


MaskAndBias = tuple[Any, Any]
"""Mask and bias; each may be None."""


def check_attended(heads: int, x: Any, cache: Any, own: MaskAndBias, memory: Any, cross: MaskAndBias) -> None:
    """Check masks and biases of a block: those of self-attention of x `B T D`, or of its cache, and those of a memory, if
    given."""
    batch, queries = x.shape[:2]
    check_scored((batch, heads, queries, queries if cache is None else cache.capacity), *own)
    if memory is not None:
        check_scored((batch, heads, queries, memory_shape(memory)[1]), *cross, name="memory ")


def check_place(patterned: tuple[bool, bool], place: Any, placed: bool, memory: Any) -> None:
    """Check the place of a layer: a layer of a pattern (of windows, of rotary positions) has to be told if it has them, and
    rotary positions or a window cannot be combined with a memory."""
    for found, name, pattern in zip(patterned, ("windowed", "rotated"), ("layer_pattern", "rotary_pattern"), strict=True):
        if found and getattr(place, name) is None:
            raise InputError(f"this layer is one of a {pattern}; call the stack, or give place=Place({name}=True or False)")
    if placed and memory is not None:
        raise InputError(
            "this attention has rotary positions or a window of its own tokens; build with cross=True for a memory"
        )


def check_scored(shape: Shape, mask: Any, bias: Any, *, name: str = "") -> None:
    """Check a mask and a bias for scores of this shape (B, N, T, S)."""
    check_mask(mask, shape, name=f"{name}mask")
    check_bias(bias, shape, name=f"{name}bias")


def check_mask(mask: Any, shape: Shape, *, name: str = "mask") -> None:
    """Check a mask: None, or booleans of rank 4 with sizes as in `shape` (B, N, T, S), or 1."""
    if mask is None:
        return
    if not hasattr(mask, "dtype"):
        raise InputError(f"{name} is {type_of(mask)}; give an array of booleans, True = may attend")
    if (kind := _kind(mask)) != "bool":
        how = "`mask == 0` of torch's 0 and -inf, or add it as bias" if "float" in kind else "`mask == 1` of ones and zeros"
        raise InputError(f"{name} is of type {mask.dtype}; give booleans, True = may attend: {how}")
    _check_four_axes(mask, shape, name, _reshaped(tuple(mask.shape), shape))


def check_valid(valid: Any) -> None:
    """Check a mask of tokens that are no padding: booleans `B S`."""
    if _kind(valid) != "bool" or len(valid.shape) != 2:
        raise InputError(
            f"valid is {_kind(valid)} of shape {tuple(valid.shape)}; give booleans of shape (batch, length), True = no "
            "padding: `valid == 1` of ones and zeros"
        )


def check_bias(bias: Any, shape: Shape, *, name: str = "bias") -> None:
    """Check a bias: None, or floats of rank 4 with sizes as in `shape` (B, N, T, S), or 1."""
    if bias is None:
        return
    if not hasattr(bias, "dtype"):
        raise InputError(f"{name} is {type_of(bias)}; give an array of floats, which are added to the scores")
    if "float" not in (kind := _kind(bias)):
        how = "; give booleans as mask" if kind == "bool" else ""
        raise InputError(f"{name} is of type {bias.dtype}; give floats, which are added to the scores{how}")
    _check_four_axes(bias, shape, name, "")


def _kind(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _check_four_axes(array: Any, shape: Shape, name: str, how: str) -> None:
    found = tuple(array.shape)
    if len(found) != 4 or any(size not in (1, wanted) for size, wanted in zip(found, shape, strict=True)):
        raise InputError(f"{name} has shape {found}; give {shape} (batch, heads, queries, keys), or 1 for any of them{how}")


def _reshaped(found: tuple[int, ...], shape: Shape) -> str:
    """Return a hint how a torch mask of lower rank becomes one of rank 4; torch.nn's masks are True where a key is hidden."""
    batch, heads, queries, keys = shape
    steps = {(queries, keys): "[None, None]", (batch, keys): "[:, None, None]", (batch, queries, keys): "[:, None]"}
    if step := steps.get(found, f".reshape{shape}" if found == (batch * heads, queries, keys) else ""):
        return f": `mask{step}`, or `~mask{step}` of torch.nn's, where True hides a key"
    return ""


def check_text(text: object, *, name: str) -> None:
    """Check for a string that can be encoded in UTF-8."""
    if not isinstance(text, str):
        raise InputError(f"{name} is {type_of(text)}; give a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"character {text[error.start]!r} (position {error.start})"
        raise InputError(f"{name}: {found} is half a surrogate pair and has no UTF-8 form; remove it") from None


def check_several(texts: object, *, name: str) -> None:
    """Check for several texts: a single string would pass as a list of its characters."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"{name} is {type_of(texts)}; give a list of strings")


def check_config(config: object, kind: type[C], *, name: str = "config") -> C:
    """Return a configuration of this kind; ConfigError for one of another kind, and for anything else."""
    if not isinstance(config, kind):
        raise ConfigError(f"{name} is {type_of(config)}; give a {kind.__name__}")
    return config
