"""Checks for settings of a BlockConfig that exclude or need each other. Imports no jax."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from jaxformer.config.rotary import check_rotated
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_size

ROTATED = ("half", "interleaved")
ReadWith = Mapping[str, tuple[str, tuple[object, ...]]]
READ_WITH: ReadWith = {
    "rotary_dim": ("rotary", ROTATED),
    "rotary_pattern": ("rotary", ROTATED),
    "rotary_base": ("rotary", ROTATED),
    "rotary_reversed": ("rotary", ROTATED),
    "qk_norm_after_rotary": ("rotary", ROTATED),
    "rotary_window_base": ("rotary", ROTATED),
    "rotary_scaling": ("rotary", ROTATED),
    "rotary_factor": ("rotary_scaling", ("linear", "dynamic", "llama3", "yarn", "longrope", "proportional")),
    "rotary_original_context": ("rotary_scaling", ("dynamic", "llama3", "yarn", "longrope")),
    "rotary_low_frequency_factor": ("rotary_scaling", ("llama3",)),
    "rotary_high_frequency_factor": ("rotary_scaling", ("llama3",)),
    "rotary_beta_fast": ("rotary_scaling", ("yarn",)),
    "rotary_beta_slow": ("rotary_scaling", ("yarn",)),
    "rotary_truncate": ("rotary_scaling", ("yarn",)),
    "rotary_attention_factor": ("rotary_scaling", ("yarn", "longrope")),
    "rotary_short_factors": ("rotary_scaling", ("longrope",)),
    "rotary_long_factors": ("rotary_scaling", ("longrope",)),
    "rotary_pairs": ("rotary_scaling", ("proportional",)),
    "relative_buckets": ("relative_bias", ("t5", "disentangled")),
    "relative_distance": ("relative_bias", ("t5", "disentangled")),
    "relative_norm": ("relative_bias", ("disentangled",)),
    "relative_per_layer": ("relative_bias", ("t5",)),
    "remat_policy": ("remat", (True,)),
    "key_bias": ("qkv_bias", (True,)),
    "gate_limit": ("gated", (True,)),
    "qk_norm_over": ("qk_norm", (True,)),
    "qk_norm_kind": ("qk_norm", (True,)),
    "qk_norm_affine": ("qk_norm", (True,)),
    "qk_norm_bias": ("qk_norm_kind", ("layer",)),
    "shared_norm": ("parallel_residual", (True,)),
    "norm_bias": ("norm_affine", (True,)),
}
"""Field -> the field it depends on, and the values of that field with which it is read."""
FEWEST_BUCKETS = 4


def check_combinations(config: Any) -> None:
    """Raise ConfigError for a setting that another one makes unused or impossible."""
    check_read(config, READ_WITH)
    _check_norms_and_residuals(config)
    _check_heads(config)
    check_rotated(config)
    _check_windows(config)
    _check_scaling(config)
    if config.relative_bias == "disentangled":
        _check_disentangled(config)
    if config.relative_bias in ("t5", "disentangled"):
        least = config.relative_buckets // 2 + (1 if config.relative_bias == "t5" else 2)
        check_size("relative_buckets", config.relative_buckets, least=FEWEST_BUCKETS)
        if config.relative_buckets % 2:
            raise ConfigError(f"relative_buckets = {config.relative_buckets} is odd; give an even number, half for each side")
        if config.relative_per_layer and config.shared_layers:
            raise ConfigError("shared_layers = True makes one block of all layers, and relative_per_layer a table for each")
        check_size("relative_distance", config.relative_distance, least=least)


def _check_disentangled(config: Any) -> None:
    alone = {"rotary": "none", "qk_norm": False, "clip_qkv": None, "kv_latent": None}
    for name, only in alone.items():
        if (value := getattr(config, name)) != only:
            raise ConfigError(f"{name} = {value!r} has no place in disentangled attention; leave it out, or relative_bias")
    if config.kv_heads != config.n_heads:
        raise ConfigError(f"n_kv_heads = {config.n_kv_heads} has no place in disentangled attention; leave it out")
    if config.relative_norm and config.norm == "none":
        raise ConfigError("relative_norm = True needs a norm; set norm = 'layer', or relative_norm = False")


def check_read(config: Any, read_with: ReadWith) -> None:
    """Raise ConfigError for a setting that is not read with the value of the field it depends on."""
    defaults = {field.name: field.default for field in fields(config)}
    for name, (other, values) in read_with.items():
        value, found = getattr(config, name), getattr(config, other)
        if value != defaults[name] and found not in values:
            wanted = " or ".join(map(repr, values))
            raise ConfigError(
                f"{name} = {value!r} is not read with {other} = {found!r}; set {other} = {wanted}, or leave it out"
            )


def _check_norms_and_residuals(config: Any) -> None:
    if config.norm_unit_offset and config.norm == "none" and not config.qk_norm:
        raise ConfigError("norm_unit_offset = True needs a norm; set norm = 'rms', or norm_unit_offset = False")
    if not config.norm_affine and config.norm == "none":
        raise ConfigError("norm_affine = False is not read with norm = 'none'; set norm = 'layer', or leave it out")
    if not config.norm_affine and config.norm_unit_offset and not config.qk_norm:
        raise ConfigError("norm_unit_offset = True is not read with norm_affine = False, as no norm has a gain; leave it out")
    if config.parallel_residual and config.norm_position != "pre":
        raise ConfigError(f"parallel_residual = True needs norm_position = 'pre', and it is {config.norm_position!r}")
    if config.parallel_residual and not config.d_ff:
        raise ConfigError("parallel_residual = True needs a feed-forward layer, and d_ff = 0; set parallel_residual = False")


def _check_heads(config: Any) -> None:
    if config.qk_norm_after_rotary and not config.qk_norm:
        raise ConfigError("qk_norm_after_rotary = True is not read with qk_norm = False; set qk_norm = True, or leave it out")
    if config.qk_norm_after_rotary and config.clip_qkv is not None:
        raise ConfigError(
            "qk_norm_after_rotary = True has no place for clip_qkv, which clamps before the rotation; leave it out"
        )
    for name in ("qk_norm_bias", "norm_unit_offset"):
        if config.qk_norm and not config.qk_norm_affine and getattr(config, name):
            raise ConfigError(f"{name} = True is not read with qk_norm_affine = False; set qk_norm_affine = True")
    if not config.value_projection and config.projections == "fused":
        raise ConfigError("value_projection = False needs projections = 'separate': one matrix is queries, keys and values")
    if not config.key_bias and config.projections == "fused":
        raise ConfigError("key_bias = False needs projections = 'separate': one bias is for queries, keys and values together")
    if not config.output_projection and config.output_bias:
        raise ConfigError("output_bias = True needs output_projection = True; set output_bias = False")
    if not config.output_projection and config.n_heads * config.head_width != config.d_model:
        raise ConfigError(
            f"head_dim = {config.head_dim} makes heads {config.n_heads * config.head_width} wide in all, which "
            f"output_projection = False adds to d_model = {config.d_model}; set output_projection = True"
        )


def _check_windows(config: Any) -> None:
    pattern = config.layer_pattern
    if config.window is not None:
        check_size("window", config.window)
    if pattern is not None:
        if not isinstance(pattern, tuple) or any(kind not in ("window", "full") for kind in pattern):
            raise ConfigError(
                f"layer_pattern = {pattern!r:.60} is not a tuple of 'window' and 'full'; give one, as ('window', 'full')"
            )
        if "window" not in pattern:
            raise ConfigError(
                f"layer_pattern = {pattern!r:.60} has no 'window'; leave it and window out where all layers see all"
            )
    for name in ("layer_pattern", "rotary_window_base"):
        if getattr(config, name) is not None and config.window is None:
            raise ConfigError(f"{name} = {getattr(config, name)!r:.60} needs a window; give window = 4096, or leave it out")


def _check_scaling(config: Any) -> None:
    """Check that a scaling of rotary positions has all of its numbers, and that their order is right."""
    for name, (other, values) in READ_WITH.items():
        missing = other == "rotary_scaling" and config.rotary_scaling in values and getattr(config, name) is None
        if missing and name != "rotary_attention_factor":
            raise ConfigError(f"{other} = {config.rotary_scaling!r} needs {name}; the model's own configuration has it")
    ordered = {
        "llama3": ("rotary_low_frequency_factor", "rotary_high_frequency_factor"),
        "yarn": ("rotary_beta_slow", "rotary_beta_fast"),
    }
    if config.rotary_scaling in ordered:
        low, high = ordered[config.rotary_scaling]
        if not getattr(config, low) < getattr(config, high):
            raise ConfigError(
                f"{low} = {getattr(config, low)} is not below {high} = {getattr(config, high)}; give a smaller one"
            )


def check_no_layer_embedding(config: Any) -> None:
    """Raise ConfigError for embeddings of every layer, which a decoder-only model alone has."""
    if config.layer_embedding:
        raise ConfigError(
            f"layer_embedding = {config.layer_embedding} is for a GPT, whose layers all see one text; leave it out"
        )
