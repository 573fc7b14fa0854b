"""Settings of dense layers in front of layers with experts. Imports no jax."""

from dataclasses import fields, replace
from typing import Any

from jaxformer.config.configuration import configuration
from jaxformer.config.experts import ExpertsConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_size


@configuration
class DenseLayersConfig:
    """Settings of first layers whose feed-forward layer is no mixture of experts."""

    dense_layers: int = 0
    """Number of first layers without experts, of the n_layers in all (DeepSeek)."""
    dense_d_ff: int | None = None
    """Width of the feed-forward layer of these first layers."""


NONE: dict[str, Any] = {field.name: field.default for field in fields(DenseLayersConfig)}
NO_EXPERTS: dict[str, Any] = {field.name: field.default for field in fields(ExpertsConfig)}
NO_LOSSES = {"balance_loss": 0.0, "router_z_loss": 0.0}


def dense_blocks(config: Any) -> Any:
    """Return the settings of the first layers, which have no experts."""
    return replace(config, **NO_EXPERTS, **NO_LOSSES, **NONE, n_layers=config.dense_layers, d_ff=config.dense_d_ff)


def sparse_blocks(config: Any) -> Any:
    """Return the settings of the layers with experts, behind the first ones: patterns of layers go on from there."""
    n, patterns = config.dense_layers, {name: getattr(config, name) for name in ("layer_pattern", "rotary_pattern")}
    turned = {name: it and (*it[n % len(it) :], *it[: n % len(it)]) for name, it in patterns.items()}
    return replace(config, **NONE, **turned, n_layers=config.n_layers - n)


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
    if config.relative_bias == "t5":
        raise ConfigError("relative_bias = 't5' has one table for all layers, and dense_layers makes two stacks; leave one out")
    if config.shared_layers:
        raise ConfigError("shared_layers = True makes one block of all layers, and dense_layers two kinds; leave one out")
