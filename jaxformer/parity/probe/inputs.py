"""Adversarial inputs: padding, repeated ids and a large mean; images and audio whose sizes differ along each axis.

Also the input lengths that exceed a model's sliding windows and position tables.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxformer.errors import InputError, type_of
from jaxformer.validation.fields import check_seed, check_size

SHIFT = 50.0
"""Mean of one row of hidden states: a variance computed as E[x^2] - E[x]^2 loses its digits there."""


BEYOND = 9
"""Number of tokens by which a probe exceeds the longest window."""


def probe(
    vocab: int | None = None, batch: int = 5, length: int = 66, seed: int = 0, pad: int = 0, *, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return adversarial inputs `B T` and the mask of their real positions: `ids, valid = probe(vocab=50257)`.

    Row 1 is padded on the right, row 2 on the left, the last row everywhere. With `vocab`, the inputs are int32 ids below it;
    the id `pad` fills the padding and also occurs inside the text, and ids are repeated. With `width`, they are float32 hidden
    states `B T width`, the first row with a mean of 50; padding is noise, on which no output may depend. Pass `valid` to a
    model that takes a mask, and leave it out for one that does not. InputError or ConfigError for sizes or ids that do not fit.
    """
    if (vocab is None) == (width is None):
        raise InputError(f"probe has vocab = {vocab} and width = {width}; give one of them: vocab for ids, width for states")
    check_size("batch", batch, least=4)
    check_size("length", length, least=4)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    valid = np.ones((batch, length), bool)
    valid[1, -(length // 4) :] = False
    valid[2, : length // 4] = False
    valid[-1] = False
    if vocab is None:
        check_size("width", width)
        states = rng.standard_normal((batch, length, width or 0))
        states[0] += SHIFT
        return states.astype(np.float32), valid
    check_size("vocab", vocab, least=2)
    check_size("pad", pad, least=0, most=vocab - 1)
    ids = rng.integers(0, vocab, (batch, length)).astype(np.int32)
    ids[:, length // 2] = pad
    ids[:, length // 2 + 1] = ids[:, length // 2 - 1]
    return np.where(valid, ids, pad).astype(np.int32), valid


def probe_config(config: Any, batch: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the `probe` of a model with this configuration, a mapping or an object: `ids, valid = probe_config(model.config)`.

    Ids are below `vocab_size`, padding is `pad_token_id`, and rows are longer than the sliding windows and the context before a
    rotary scaling; a learned table of positions is used to its end. InputError if there is no `vocab_size`.
    """
    held = dict(settings(config))
    if (vocab := held.get("vocab_size")) is None:
        raise InputError(f"the configuration, {type_of(config)}, has no vocab_size; give one that has, or call probe(vocab)")
    table, limits = table_of(config), limits_of(config)
    length = max([66, *(limit + BEYOND for limit in limits.values())])
    pad = held.get("pad_token_id")
    pad = pad if isinstance(pad, int) and 0 <= pad < vocab else 0
    return probe(vocab, batch, length if table is None else table, seed, pad)


CONSTANT = 0.5
"""Value of an image without contrast, whose variance is 0: there an epsilon decides."""


def probe_image(batch: int = 3, channels: int = 3, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Return adversarial images `B C H W`, float32: `pixels = probe_image()`.

    Height and width differ, so that the two axes cannot be confused. The first image has a mean of 50, the last one is
    constant. InputError or ConfigError for sizes that do not fit.
    """
    check_size("batch", batch, least=3)
    for name, size in (("channels", channels), ("height", height), ("width", width)):
        check_size(name, size)
    check_seed(seed)
    pictures = np.random.default_rng(seed).standard_normal((batch, channels, height, width))
    pictures[0] += SHIFT
    pictures[-1] = CONSTANT
    return pictures.astype(np.float32)


def probe_audio(batch: int = 4, length: int = 1603, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return adversarial audio `B T`, float32, and the mask of its real samples: `waves, valid = probe_audio()`.

    The length is odd, so that strides leave samples over. The first sound has a mean of 50, the second is shorter, the last one
    is silent; padding is 0. InputError or ConfigError for sizes that do not fit.
    """
    check_size("batch", batch, least=4)
    check_size("length", length, least=4)
    check_seed(seed)
    waves, valid = np.random.default_rng(seed).standard_normal((batch, length)), np.ones((batch, length), bool)
    waves[0] += SHIFT
    valid[1, -(length // 3) :] = False
    waves[-1] = 0
    return np.where(valid, waves, 0).astype(np.float32), valid


PASSED = ("sliding_window", "window_size", "attention_window", "local_attention", "attention_chunk_size")
"""Settings that limit how many tokens a query sees: sliding windows and attention chunks."""
ORIGINAL = ("original_max_position_embeddings",)
"""Settings for the context length after which rotary positions are scaled."""
DISTANCES = ("relative_attention_max_distance", "max_distance")
"""Settings for the distance from which all relative positions share a bias."""
ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_emb_base", "rotary_dim", "partial_rotary_factor")
TABLES = ("max_position_embeddings", "n_positions", "max_source_positions")
"""Settings for the number of positions in a learned table."""
INSIDE = ("text_config", "rope_scaling", "rope_parameters", "encoder", "decoder", "layers")
LARGEST = 2**20
"""Values from here on mean that there is no limit."""


def limits_of(config: Any) -> dict[str, int]:
    """Return setting -> the number of tokens that an input has to exceed for the setting to have an effect."""
    found = {}
    for name, value in settings(config):
        if name in (*PASSED, *ORIGINAL, *DISTANCES) and type(value) is int and 0 < value < LARGEST:
            found[name] = max(value, found.get(name, 0))
    return found


def table_of(config: Any) -> int | None:
    """Return the number of positions in a model's learned table; None if positions are computed."""
    held = dict(settings(config))
    if any(held.get(name) for name in ROTARY) or any(name in held for name in DISTANCES):
        return None
    return next((held[name] for name in TABLES if type(held.get(name)) is int), None)


def settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a configuration, a mapping or an object, and of the nested ones in `INSIDE`."""
    held = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    for name, value in held.items():
        yield str(name), value
        if name in INSIDE:
            yield from settings(value)


def never_passed(model: Any, inputs: tuple[np.ndarray, ...]) -> list[str]:
    """Describe each window of a torch model that no input exceeds: 'sliding_window = 4096: the longest input has 17 tokens,
    which is not more'."""
    lengths = [array.shape[1] for array in inputs if array.ndim == (2 if array.dtype.kind in "iub" else 3)]
    found: dict[str, int] = {}
    for module in model.modules():
        found |= limits_of(getattr(module, "config", {})) | limits_of({name: vars(module).get(name) for name in PASSED})
    longest = max(lengths, default=0)
    tokens = f"the longest input has {longest} tokens"
    return [f"{name} = {limit}: {tokens}, which is not more" for name, limit in found.items() if 0 < longest <= limit]
