"""Settings of first layers that are not as the others: without experts, or without a norm before attention. Imports no jax."""

from dataclasses import fields, replace
from typing import Any

from jaxformer.config.configuration import configuration
from jaxformer.config.experts import ExpertsConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_flag, check_size


@configuration
class FirstLayersConfig:
    """Settings of a first layer without a norm before attention."""

    first_attention_norm: bool = True
    """Norm before the attention of the first layer. False: none, as the embeddings have one (ModernBERT)."""

    @property
    def first_layers(self) -> int:
        """Number of first layers that are not as the others."""
        return int(not self.first_attention_norm)


@configuration
class DenseLayersConfig(FirstLayersConfig):
    """Settings of first layers whose feed-forward layer is no mixture of experts."""

    dense_layers: int = 0
    """Number of first layers without experts, of the n_layers in all (DeepSeek)."""
    dense_d_ff: int | None = None
    """Width of the feed-forward layer of these first layers."""

    @property
    def first_layers(self) -> int:
        """Number of first layers that are not as the others."""
        return self.dense_layers or super().first_layers


ALIKE: dict[str, Any] = {field.name: field.default for field in fields(DenseLayersConfig)}
NO_EXPERTS: dict[str, Any] = {field.name: field.default for field in fields(ExpertsConfig)}
NO_LOSSES = {"balance_loss": 0.0, "router_z_loss": 0.0}
GOES_WITH: dict[str, tuple[object, ...]] = {
    "norm_position": ("pre", "sandwich"),
    "norm": ("layer", "rms", "std"),
    "shared_norm": (False,),
    "n_experts": (0,),
}
"""Field -> its values with which a first layer may lack the norm before attention."""


def first_blocks(config: Any) -> Any:
    """Return the settings of the first layers, which have no experts if `dense_layers` are set."""
    alike = _alike(config) | {"n_layers": config.first_layers}
    if not getattr(config, "dense_layers", 0):
        return replace(config, **alike)
    return replace(config, **alike, **NO_EXPERTS, **NO_LOSSES, d_ff=config.dense_d_ff)


def other_blocks(config: Any) -> Any:
    """Return the settings of the layers behind the first ones: patterns of layers go on from there."""
    n, patterns = config.first_layers, {name: getattr(config, name) for name in ("layer_pattern", "rotary_pattern")}
    turned = {name: it and (*it[n % len(it) :], *it[: n % len(it)]) for name, it in patterns.items()}
    return replace(config, **_alike(config), **turned, n_layers=config.n_layers - n)


def _alike(config: Any) -> dict[str, Any]:
    return {name: value for name, value in ALIKE.items() if hasattr(config, name)}


def check_first_layer(config: Any) -> None:
    """Raise ConfigError for a first layer without an attention norm where no layer has one, or all share a block or a table."""
    check_flag("first_attention_norm", config.first_attention_norm)
    if config.first_attention_norm:
        return
    for name, fit in GOES_WITH.items():
        if (value := getattr(config, name)) not in fit:
            raise ConfigError(
                f"first_attention_norm = False does not go with {name} = {value!r}; set {name} = {fit[0]!r}, or leave it out"
            )
    _check_two_stacks(config, "first_attention_norm = False")


def check_dense_layers(config: Any) -> None:
    """Raise ConfigError for first layers without experts that are not possible, or a width of theirs that nothing reads."""
    check_size("dense_layers", config.dense_layers, least=0)
    if not config.dense_layers:
        if config.dense_d_ff is not None:
            raise ConfigError(f"dense_d_ff = {config.dense_d_ff} is not read with dense_layers = 0; set dense_layers")
        return
    if not config.n_experts:
        raise ConfigError(f"dense_layers = {config.dense_layers} is not read with n_experts = 0, as all layers are dense then")
    if config.dense_layers >= config.n_layers:
        raise ConfigError(
            f"dense_layers = {config.dense_layers} leaves none of n_layers = {config.n_layers} to experts; give fewer, or no "
            "experts"
        )
    if config.dense_d_ff is None:
        raise ConfigError(f"dense_layers = {config.dense_layers} needs dense_d_ff, the width of their feed-forward layer")
    check_size("dense_d_ff", config.dense_d_ff)
    if not config.first_attention_norm:
        raise ConfigError("first_attention_norm = False and dense_layers would make three kinds of layers; leave one out")
    _check_two_stacks(config, "dense_layers")


def _check_two_stacks(config: Any, name: str) -> None:
    if config.relative_bias in ("t5", "disentangled") and not config.relative_per_layer:
        raise ConfigError(
            f"relative_bias = {config.relative_bias!r} has one table for all layers, and {name} makes two stacks; leave one out"
        )
    if config.shared_layers:
        raise ConfigError(f"shared_layers = True makes one block of all layers, and {name} two kinds; leave one out")
