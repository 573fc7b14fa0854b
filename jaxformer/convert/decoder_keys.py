"""Keys of config.json that modern decoders share and that are not one field each: rotary positions, sliding windows by layer.

transformers 5 has the rotary positions in `rope_parameters`; older files have `rope_theta` and `rope_scaling`. Both are read
and both are written.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.combinations import READ_WITH
from jaxformer.convert.model_type import Field
from jaxformer.errors import ConfigError

ROPE = {name: Field(name, None) for name in ("rope_parameters", "rope_scaling", "rope_theta")}
"""Keys that `take_rope` reads and `rope_keys` writes."""
PART = "partial_rotary_factor"
"""Rotated share of a head; a key of its own before version 5, of model types that rotate a part."""
SCALINGS = {"default": "none", "su": "longrope"} | {it: it for it in ("linear", "dynamic", "llama3", "yarn", "longrope")}
NUMBERS = {
    "rotary_factor": "factor",
    "rotary_original_context": "original_max_position_embeddings",
    "rotary_low_frequency_factor": "low_freq_factor",
    "rotary_high_frequency_factor": "high_freq_factor",
    "rotary_beta_fast": "beta_fast",
    "rotary_beta_slow": "beta_slow",
    "rotary_truncate": "truncate",
    "rotary_attention_factor": "attention_factor",
    "rotary_short_factors": "short_factor",
    "rotary_long_factors": "long_factor",
}
"""jaxformer's fields -> keys in `rope_parameters`."""
KNOWN = {"rope_type", "type", "rope_theta", "mscale", "mscale_all_dim", *NUMBERS.values()}
LAYERS = {"sliding_attention": "window", "full_attention": "full"}
"""transformers' kinds of layers -> jaxformer's."""


def take_rope(found: dict[str, Any]) -> dict[str, Any]:
    """Take the keys in `ROPE`, and `PART` of a type that has it, out of `found`; return jaxformer's rotary fields."""
    parameters, scaling, theta = (found.pop(name) for name in ROPE)
    rope = {"rope_theta": 10000.0 if theta is None else theta} | dict(scaling or parameters or {})
    part = rope.pop(PART, found.get(PART, 1.0))
    if PART not in found and part != 1:
        raise ConfigError(f"{PART} = {part} is not supported (1 is): heads would be rotated as a whole")
    found.pop(PART, None)
    return read_rope(rope, found["context"]) | rotated_part(found, part)


def rotated_part(found: Mapping[str, Any], part: float) -> dict[str, int]:
    """Return `rotary_dim` for the rotated share of a head; {} if heads are rotated as a whole."""
    width = found.get("head_dim") or found["d_model"] // found["n_heads"]
    return {} if int(width * part) == width else {"rotary_dim": int(width * part)}


def read_rope(rope: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Return jaxformer's rotary fields for one `rope_parameters`; ConfigError for an unsupported scaling or an unknown key."""
    rope = {name: value for name, value in rope.items() if value is not None}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in SCALINGS:
        raise ConfigError(
            f"rope_type = {kind!r} is not supported ({', '.join(SCALINGS)} are): tokens would be rotated by other angles"
        )
    if unknown := sorted(rope.keys() - KNOWN):
        raise ConfigError(f"{', '.join(unknown)} of its rotary positions is not known; take it out if it changes no output")
    given = {"rotary_base": rope["rope_theta"], "rotary_scaling": SCALINGS[kind]}
    numbers = {"original_max_position_embeddings": context} | rope
    if kind == "dynamic":  # transformers scales from its longest context on, and has no bound
        numbers["original_max_position_embeddings"] = context
        given["context"] = int(context * rope["factor"])
    if SCALINGS[kind] == "longrope":
        numbers = {"factor": context / numbers["original_max_position_embeddings"]} | numbers
        numbers |= {name: tuple(rope[name]) for name in ("short_factor", "long_factor")}
    if kind == "yarn":
        numbers = {"factor": context / numbers["original_max_position_embeddings"]} | yarn_amplitude(rope) | numbers
    return given | {name: numbers[key] for name, key in NUMBERS.items() if key in numbers and is_read(name, SCALINGS[kind])}


def yarn_amplitude(rope: Mapping[str, Any]) -> dict[str, float]:
    """Return the attention_factor that DeepSeek's keys describe as the quotient of two amplitudes; {} if they are not set."""
    over, under, factor = rope.get("mscale"), rope.get("mscale_all_dim"), rope.get("factor", 1)
    if not over or not under or factor <= 1:
        return {}
    return {"attention_factor": (0.1 * over * math.log(factor) + 1) / (0.1 * under * math.log(factor) + 1)}


def is_read(name: str, scaling: str) -> bool:
    """True if a field is read with this scaling."""
    return scaling in READ_WITH[name][1]


def rope_parameters(config: BlockConfig) -> dict[str, Any]:
    """Return `rope_parameters` for a configuration, the inverse of `read_rope`."""
    if config.rotary_scaling == "proportional":
        return proportional(config)
    kinds = {own: word for word, own in SCALINGS.items() if word != "su"}
    numbers = {key: getattr(config, name) for name, key in NUMBERS.items() if is_read(name, config.rotary_scaling)}
    if config.rotary_scaling == "dynamic":
        del numbers["original_max_position_embeddings"]  # transformers has max_position_embeddings for it
    numbers = {key: list(value) if isinstance(value, tuple) else value for key, value in numbers.items() if value is not None}
    return {"rope_type": kinds[config.rotary_scaling], "rope_theta": config.rotary_base, **numbers}


def proportional(config: BlockConfig) -> dict[str, Any]:
    """Return `rope_parameters` of proportional angles, of which the first pairs of a head alone turn."""
    width = getattr(config, "full_head_dim", None) or config.head_width
    factor = {} if config.rotary_factor == 1 else {"factor": config.rotary_factor}
    part = 2 * (config.rotary_pairs or 0) / width
    return {"rope_type": "proportional", PART: part, "rope_theta": config.rotary_base} | factor


def rope_keys(config: BlockConfig, *, part: bool = False) -> dict[str, Any]:
    """Return the keys of transformers 5 and those of earlier versions, with `PART` if the model type has it."""
    rope = rope_parameters(config)
    older = {name: value for name, value in rope.items() if name != "rope_theta"}
    scaling = None if config.rotary_scaling == "none" else older
    keys = {"rope_parameters": rope, "rope_theta": config.rotary_base, "rope_scaling": scaling}
    if config.rotary_scaling == "dynamic":
        keys["max_position_embeddings"] = config.rotary_original_context
    share = {PART: 1.0 if config.rotary_dim is None else config.rotary_dim / config.head_width} if part else {}
    return keys | share | {"rope_parameters": rope | share}


def read_by_layer(
    parameters: Mapping[str, Any], whole: Mapping[str, Any], near: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return jaxformer's rotary fields for `rope_parameters` by type of layer: `whole` of layers that see all tokens, `near` of
    those with a sliding window, whose angles are not scaled."""
    if unknown := sorted(parameters.keys() - LAYERS.keys()):
        raise ConfigError(f"{', '.join(unknown)} of its rotary positions is not known; take it out if it changes no output")
    fields, local = (read_rope(it, found["context"]) for it in (whole, near))
    if fields.get("rotary_truncate") is False:
        raise ConfigError(
            "truncate = False of rotary positions by layer is not read by transformers; take it out, or write true"
        )
    if found["window"] is not None and local != fields:
        if local["rotary_scaling"] != "none":
            raise ConfigError(f"rope_type = {local['rotary_scaling']!r} of layers with a window is not supported (default is)")
        fields["rotary_window_base"] = local["rotary_base"]
    return fields


def rope_by_layer(config: BlockConfig) -> dict[str, Any]:
    """Return `rope_parameters` by type of layer, the inverse of `read_by_layer`."""
    whole, local = rope_parameters(config), config.rotary_window_base
    return {
        "full_attention": whole,
        "sliding_attention": whole if local is None else {"rope_type": "default", "rope_theta": local},
    }


def read_layers(types: Sequence[str], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return `window` and `layer_pattern` for the types of all layers; the pattern is as short as possible."""
    n_layers, window = found["n_layers"], found["window"]
    if unknown := sorted({*types} - {*LAYERS}):
        raise ConfigError(f"layer_types has {', '.join(unknown)}, which is not supported ({', '.join(LAYERS)} are)")
    if len(types) != n_layers:
        raise ConfigError(f"layer_types has {len(types)} layers, and the model {n_layers}")
    kinds = [LAYERS[name] for name in types]
    if "window" not in kinds:
        return {"window": None}
    if window is None:
        raise ConfigError("layer_types has layers with a window, and sliding_window is null")
    return {"window": window, "layer_pattern": tuple(kinds[: period_of(kinds)]) if "full" in kinds else None}


def layer_types(config: BlockConfig) -> list[str]:
    """Return the types of all layers, the inverse of `read_layers`."""
    windowed = config.windowed_layers or (config.window is not None,) * config.n_layers
    return ["sliding_attention" if it else "full_attention" for it in windowed]


def read_rotated(rotated: Sequence[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary fields for layers that rotate (true) or do not; the pattern is as short as possible."""
    kinds, n_layers = [bool(it) for it in rotated], found["n_layers"]
    if len(kinds) != n_layers:
        raise ConfigError(f"layers with rotary positions are told of {len(kinds)} layers, and the model has {n_layers}")
    if not any(kinds):
        raise ConfigError("no layer has rotary positions, and its numbers for them would not be used")
    return {} if all(kinds) else {"rotary_pattern": tuple(kinds[: period_of(kinds)])}


def rotated_layers(config: BlockConfig) -> list[int]:
    """Return 1 for each layer with rotary positions, 0 for the others; the inverse of `read_rotated`."""
    return [int(it) for it in config.rotated_layers or (True,) * config.n_layers]


def period_of(kinds: Sequence[Any]) -> int:
    """Return the smallest number of layers after which their kinds repeat."""
    return next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
