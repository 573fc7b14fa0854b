"""How long an input has to be to pass a model's windows and the ends of its tables, as its configuration says."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

PASSED = ("sliding_window", "window_size", "attention_window", "local_attention", "attention_chunk_size")
"""Settings that say how many tokens a query sees."""
ORIGINAL = ("original_max_position_embeddings",)
"""Behind so many tokens, rotary positions are scaled."""
DISTANCES = ("relative_attention_max_distance", "max_distance")
"""From there on, all distances share a bias."""
ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_emb_base", "rotary_dim", "partial_rotary_factor")
TABLES = ("max_position_embeddings", "n_positions", "max_source_positions")
"""Settings that say how many positions a learned table has."""
INSIDE = ("text_config", "rope_scaling", "rope_parameters", "encoder", "decoder", "layers")
LARGEST = 2**20
"""A larger number means: no end."""


def limits_of(config: Any) -> dict[str, int]:
    """Setting -> the number of tokens that an input has to exceed for the setting to show."""
    found = {}
    for name, value in settings(config):
        if name in (*PASSED, *ORIGINAL, *DISTANCES) and type(value) is int and 0 < value < LARGEST:
            found[name] = max(value, found.get(name, 0))
    return found


def table_of(config: Any) -> int | None:
    """How many positions a model has; None where they are computed."""
    held = dict(settings(config))
    if any(held.get(name) for name in ROTARY) or any(name in held for name in DISTANCES):
        return None
    return next((held[name] for name in TABLES if type(held.get(name)) is int), None)


def settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Of a configuration, a mapping or an object, and of those inside of it."""
    held = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    for name, value in held.items():
        yield str(name), value
        if name in INSIDE:
            yield from settings(value)


def never_passed(model: Any, inputs: tuple[np.ndarray, ...]) -> list[str]:
    """'sliding_window = 4096: the longest input has 17 tokens', for each window of a torch model that no input is longer
    than."""
    lengths = [array.shape[1] for array in inputs if array.ndim == (2 if array.dtype.kind in "iub" else 3)]
    found: dict[str, int] = {}
    for module in model.modules():
        found |= limits_of(getattr(module, "config", {})) | limits_of({name: vars(module).get(name) for name in PASSED})
    longest = max(lengths, default=0)
    tokens = f"the longest input has {longest} tokens"
    return [f"{name} = {limit}: {tokens}, which is not more" for name, limit in found.items() if 0 < longest <= limit]
