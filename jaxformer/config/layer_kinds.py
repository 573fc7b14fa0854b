"""Settings of layers that are not as the others, and the runs of layers alike that they make. Imports no jax."""

from dataclasses import fields, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

from jaxformer.config.configuration import configuration
from jaxformer.config.experts import ExpertsConfig
from jaxformer.config.rotary import RotaryConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_flag, check_size


@configuration
class FirstLayersConfig:
    """Settings of a first layer without a norm before attention."""

    first_attention_norm: bool = True
    """Norm before the attention of the first layer. False: none, as the embeddings have one (ModernBERT)."""


@configuration
class LayerKindsConfig(FirstLayersConfig):
    """Settings of layers of a decoder that are not as the others: first ones, last ones, and those that see all keys."""

    dense_layers: int = 0
    """Number of first layers without experts, of the n_layers in all (DeepSeek)."""
    dense_d_ff: int | None = None
    """Width of the feed-forward layer of these first layers."""
    full_head_dim: int | None = None
    """Width of a head in layers of a layer_pattern that see all keys (Gemma 4). None: head_dim."""
    full_kv_heads: int | None = None
    """Number of key/value heads in these layers (Gemma 4). None: n_kv_heads."""
    full_value_projection: bool = True
    """Projection of values in these layers. False: none, as for value_projection (Gemma 4)."""
    shared_kv_layers: int = 0
    """Number of last layers without keys and values of their own: each reads those of the last layer of its kind, windowed or
    not, before them (Gemma 4)."""
    shared_kv_d_ff: int | None = None
    """Width of the feed-forward layer in these last layers. None: d_ff."""


Sharing = Literal["none", "gives", "takes"]
"""Keys and values of a layer: its own, its own and those of later layers, or those of an earlier one."""


class Run(NamedTuple):
    """Consecutive layers that are alike."""

    config: Any
    """Settings of these layers, of which there are n_layers."""
    attention_norm: bool = True
    """True if they have the norm before attention that the settings say."""
    gives: bool = False
    """True if later layers read the keys and values of the last of these."""
    reads: int | None = None
    """Number of the run whose last layer's keys and values these read, in place of their own. None: their own."""

    @property
    def sharing(self) -> Sharing:
        """Keys and values of these layers, as a block is told of them."""
        return "takes" if self.reads is not None else "gives" if self.gives else "none"

    @property
    def weights_of_keys(self) -> int:
        """Number of the projections of keys and values: of both, of keys alone, or none."""
        return 0 if self.reads is not None else 1 + self.config.value_projection


class Kind(NamedTuple):
    """Traits that tell layers apart."""

    dense: bool
    """True without experts, among others with them."""
    unnormed: bool
    """True without the norm before attention."""
    reads: bool
    windowed: bool | None
    """True with a sliding window, False without; None where that makes no other layer."""


@lru_cache(256)
def runs_of(config: Any) -> tuple[Run, ...]:
    """Return a model's layers as runs of layers alike, in order; one if all are."""
    if not (isinstance(config, FirstLayersConfig) and _may_differ(config)):
        return (Run(config),)
    kinds = kinds_of(config)
    if len({*kinds}) == 1:
        return (Run(config, not kinds[0].unnormed),)
    runs, start, last = [], 0, dict[bool | None, int]()
    for kind, layers in groupby(kinds):
        n = len(list(layers))
        reads = last[kind.windowed] if kind.reads else None
        if not kind.reads:
            last[kind.windowed] = len(runs)
        runs.append(Run(_blocks(config, kind, start, n), not kind.unnormed, reads=reads))
        start += n
    read = {run.reads for run in runs}
    return tuple(run._replace(gives=i in read) for i, run in enumerate(runs))


def kinds_of(config: Any) -> list[Kind]:
    """Return the kind of each layer."""
    dense, own = getattr(config, "dense_layers", 0), config.n_layers - getattr(config, "shared_kv_layers", 0)
    windowed = config.windowed_layers if _by_window(config) else None
    unnormed = int(not config.first_attention_norm)
    return [Kind(i < dense, i < unnormed, i >= own, windowed and windowed[i]) for i in range(config.n_layers)]


def starts_of(config: Any) -> list[int]:
    """Return the number of the first layer of each run."""
    sizes = [run.config.n_layers for run in runs_of(config)]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def own_layers(config: Any) -> list[Any]:
    """Return the settings of each layer that has keys and values of its own, which a cache holds."""
    return [run.config for run in runs_of(config) if run.reads is None for _ in range(run.config.n_layers)]


def cached_numbers(config: Any) -> int:
    """Return the number of numbers that a cache holds of one token, in all layers."""
    return sum(run.config.cached_numbers * run.config.n_layers for run in runs_of(config) if run.reads is None)


FULL: dict[str, Any] = {"full_head_dim": None, "full_kv_heads": None, "full_value_projection": True}
ALIKE: dict[str, Any] = {field.name: field.default for field in fields(LayerKindsConfig)}
NO_EXPERTS: dict[str, Any] = {field.name: field.default for field in fields(ExpertsConfig)}
NO_LOSSES = {"balance_loss": 0.0, "router_z_loss": 0.0}
ANGLES = {field.name for field in fields(RotaryConfig)} - {"rotary", "rotary_dim", "rotary_pattern", "rotary_reversed"}
UNSCALED: dict[str, Any] = {field.name: field.default for field in fields(RotaryConfig) if field.name in ANGLES}
"""Rotary angles of layers with a base of their own."""
GOES_WITH: dict[str, tuple[object, ...]] = {
    "norm_position": ("pre", "sandwich"),
    "norm": ("layer", "rms", "std"),
    "shared_norm": (False,),
    "n_experts": (0,),
}
"""Field -> its values with which a first layer may lack the norm before attention."""


def _may_differ(config: Any) -> bool:
    """True if settings tell layers apart: those of most models do not, whatever the number of their layers."""
    return not config.first_attention_norm or getattr(config, "dense_layers", 0) > 0 or _by_window(config)


def _by_window(config: Any) -> bool:
    """True if layers with a window are others than those without."""
    return any(getattr(config, name, it) != it for name, it in FULL.items()) or bool(getattr(config, "shared_kv_layers", 0))


def _blocks(config: Any, kind: Kind, start: int, n: int) -> Any:
    """Return the settings of n layers of a kind from `start` on, where patterns of layers go on."""
    own: dict[str, Any] = {name: value for name, value in ALIKE.items() if hasattr(config, name)} | {"n_layers": n}
    for name in ("layer_pattern", "rotary_pattern"):
        pattern = getattr(config, name)
        own[name] = pattern and (*pattern[start % len(pattern) :], *pattern[: start % len(pattern)])
    if kind.dense:
        own |= NO_EXPERTS | NO_LOSSES | {"d_ff": config.dense_d_ff}
    if kind.reads and config.shared_kv_d_ff is not None:
        own["d_ff"] = config.shared_kv_d_ff
    if kind.windowed is not None:
        own |= {"layer_pattern": None, "rotary_window_base": None}
        own |= _windowed(config) if kind.windowed else _full(config)
    return replace(config, **own)


def _windowed(config: Any) -> dict[str, Any]:
    base = config.rotary_window_base
    return {} if base is None else UNSCALED | {"rotary_base": base}


def _full(config: Any) -> dict[str, Any]:
    return {
        "window": None,
        "head_dim": config.head_dim if config.full_head_dim is None else config.full_head_dim,
        "n_kv_heads": config.n_kv_heads if config.full_kv_heads is None else config.full_kv_heads,
        "value_projection": config.value_projection and config.full_value_projection,
    }


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
    _check_runs(config, "first_attention_norm = False")


def check_layer_kinds(config: Any) -> None:
    """Raise ConfigError for layers that are not possible: first ones without experts, those that see all keys, last ones."""
    check_size("dense_layers", config.dense_layers, least=0)
    check_size("shared_kv_layers", config.shared_kv_layers, least=0)
    check_flag("full_value_projection", config.full_value_projection)
    for name in ("dense_d_ff", "full_head_dim", "full_kv_heads", "shared_kv_d_ff"):
        if getattr(config, name) is not None:
            check_size(name, getattr(config, name))
    _check_dense_layers(config)
    _check_full_layers(config)
    _check_shared_layers(config)
    runs_of(config)


def _check_dense_layers(config: Any) -> None:
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
    _check_runs(config, "dense_layers")


def _check_full_layers(config: Any) -> None:
    named = [name for name, it in FULL.items() if getattr(config, name) != it]
    if not named:
        return
    if config.windowed_layers is None or len({*config.windowed_layers}) == 1:
        raise ConfigError(
            f"{named[0]} = {getattr(config, named[0])} is of layers that see all keys among others with a window; give a "
            "layer_pattern with both, or leave it out"
        )
    for name in ("kv_latent", "rotary_dim"):
        if (value := getattr(config, name)) is not None:
            raise ConfigError(f"{name} = {value} has no place in layers of two shapes; leave it out, or {named[0]}")
    _check_runs(config, named[0])


def _check_shared_layers(config: Any) -> None:
    n, own = config.shared_kv_layers, config.n_layers - config.shared_kv_layers
    if not n:
        if config.shared_kv_d_ff is not None:
            raise ConfigError(
                f"shared_kv_d_ff = {config.shared_kv_d_ff} is not read with shared_kv_layers = 0; set shared_kv_layers"
            )
        return
    windowed = config.windowed_layers or (False,) * config.n_layers
    if own < 1 or {*windowed[own:]} - {*windowed[:own]}:
        raise ConfigError(
            f"shared_kv_layers = {n} leaves {max(own, 0)} of n_layers = {config.n_layers} to keys and values of their own, and "
            "none of one kind of layer; give fewer"
        )
    alone = {"kv_latent": None, "n_experts": 0, "projections": "separate", "relative_bias": "none"}
    for name, only in alone.items():
        if (value := getattr(config, name)) != only:
            raise ConfigError(f"{name} = {value!r} has no place in layers that share keys and values; leave one out")
    _check_runs(config, "shared_kv_layers")


def _check_runs(config: Any, name: str) -> None:
    if config.relative_bias in ("t5", "disentangled") and not config.relative_per_layer:
        raise ConfigError(
            f"relative_bias = {config.relative_bias!r} has one table for all layers, and {name} makes two stacks; leave one out"
        )
    if config.shared_layers:
        raise ConfigError(f"shared_layers = True makes one block of all layers, and {name} two kinds; leave one out")
