"""Values of config.json, which may hold descriptions within it; and configurations compared field by field."""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig


def part_of(described: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a description within config.json; where there are two, as in older files of CLIP, transformers' is `NAME_dict`."""
    return described.get(f"{name}_dict") or described.get(name) or {}


def value_of(described: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return the value of a key, or of the key `part.key` of a description within config.json."""
    part, point, key = name.partition(".")
    return part_of(described, part).get(key, default) if point else described.get(name, default)


def differences(config: AnyModelConfig, other: AnyModelConfig, but: Collection[str]) -> list[str]:
    """Return the fields whose values differ, whatever the form in which a value is written."""
    one, two = normal_form(config), normal_form(other)
    return [
        f"{it.name} = {getattr(one, it.name)!r} ({getattr(two, it.name)!r} there)"
        for it in fields(one)
        if it.name not in but and getattr(one, it.name) != getattr(two, it.name)
    ]


def normal_form(config: AnyModelConfig) -> AnyModelConfig:
    """Return a configuration with every default replaced by its value."""
    if isinstance(config, DualEncoderConfig):
        return replace(config, vision=normal_form(config.vision), text=normal_form(config.text))
    two = isinstance(config, EncoderDecoderConfig) and config.decoder.n_heads != config.n_heads
    given: dict[str, Any] = {
        "n_kv_heads": None if two else config.kv_heads,
        "head_dim": None if two else config.head_width,
        "stack_norm": config.final_norm != "none",
        "attention_scale": config.head_width**-0.5 if config.attention_scale is None else config.attention_scale,
    }
    if config.kv_latent is not None:
        given |= {"n_kv_heads": None, "value_dim": config.value_width}
    if isinstance(config, EncoderDecoderConfig):
        source = config.source
        given |= {
            "n_decoder_layers": config.decoder.n_layers,
            "n_decoder_heads": config.decoder.n_heads if two else None,
            "source_context": source.context,
            "source_positions": source.positions,
            "source_embedding_scale": source.embedding_scale,
        }
    elif isinstance(config, EncoderConfig | GPTConfig) and config.transformed:
        given |= {"head_activation": config.head_activation or config.activation}
    if (rotated := config.rotated_layers) is not None and any(rotated):
        given |= {"rotary_pattern": None if all(rotated) else rotated}
    if (windowed := config.windowed_layers) is not None:
        pattern = tuple("window" if it else "full" for it in windowed)
        given |= {"layer_pattern": None if all(windowed) else pattern}
        given |= {} if any(windowed) else {"window": None, "layer_pattern": None, "rotary_window_base": None}
    return replace(config, **given)
