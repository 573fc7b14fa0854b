"""Settings of multi-head latent attention (DeepSeek-AI 2024, section 2.1). Imports no jax."""

from dataclasses import fields
from typing import Any, Literal, get_args

from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_number, check_size

LatentForm = Literal["auto", "expanded", "absorbed"]


@configuration
class LatentConfig:
    """Settings of multi-head latent attention: keys and values of all heads are projected from one narrow latent."""

    kv_latent: int | None = None
    """Width R of the latent of which the keys and values of all heads are made (DeepSeek-V2). The last rotary_dim units of a
    head are rotated, and their key is the same for all heads: a cache holds R + rotary_dim numbers a token. None: keys and
    values are projected from the states."""
    query_latent: int | None = None
    """Width of the latent of which the queries of all heads are made. None: they are projected from the states."""
    value_dim: int | None = None
    """Width of the values of a head. None: head_dim - rotary_dim, that of the keys from the latent."""
    latent_norm_epsilon: float = 1e-6
    """Epsilon of the RMSNorm of each latent."""
    latent_form: LatentForm = "auto"
    """Execution. expanded: keys and values are made of the latents; absorbed: the latents themselves are keys and values, of
    one head, and the projections are applied to queries and outputs; auto: absorbed where that takes fewer products with the
    tokens of a cache, else expanded."""


WITHOUT: dict[str, object] = {
    "n_kv_heads": None,
    "projections": "separate",
    "key_bias": True,
    "value_projection": True,
    "value_norm": False,
    "output_projection": True,
    "attention_softcap": None,
    "clip_qkv": None,
    "qk_norm": False,
    "sinks": False,
    "window": None,
    "rotary_pattern": None,
}
"""Fields that latent attention has no place for -> the only value that they may have."""


def check_latent(config: Any) -> None:
    """Raise ConfigError for a setting of latent attention that is out of range, unused or impossible."""
    check_choice("latent_form", config.latent_form, get_args(LatentForm))
    check_number("latent_norm_epsilon", config.latent_norm_epsilon, 0, open_below=True)
    for name in ("kv_latent", "query_latent", "value_dim"):
        if getattr(config, name) is not None:
            check_size(name, getattr(config, name))
    if config.kv_latent is not None:
        _check_heads(config)
        return
    for field in fields(LatentConfig):
        if (value := getattr(config, field.name)) != field.default:
            raise ConfigError(f"{field.name} = {value!r} is not read with kv_latent = None; set kv_latent, or leave it out")


def _check_heads(config: Any) -> None:
    for name, only in WITHOUT.items():
        if (value := getattr(config, name)) != only:
            raise ConfigError(f"{name} = {value!r:.60} has no place in latent attention; leave it out, or kv_latent")
    if config.rotary == "none":
        raise ConfigError(
            f"kv_latent = {config.kv_latent} needs rotary positions, not 'none'; set rotary = 'interleaved' (DeepSeek) or "
            "'half'"
        )
    if config.rotary_dim is None or config.rotary_dim >= config.head_width:
        raise ConfigError(
            f"rotary_dim = {config.rotary_dim} leaves no unit of a head of {config.head_width} for the latent; give fewer than "
            f"{config.head_width}, the width of the key that all heads share"
        )
