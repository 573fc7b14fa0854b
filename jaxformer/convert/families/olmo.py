"""OLMo, OLMo 2, OLMo 3 and EXAONE 4 in transformers' format: Llama's names, with norms without gain (OLMo) or behind the
sub-layers alone (the others)."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import ROPE, layer_types, read_by_layer, read_layers, read_rotated, rope_by_layer, rope_keys
from jaxformer.convert.families.llama import FIXED, LLAMA, LLAMA_TYPE, NAMES, NO_BIAS, rotary, sizes_of_heads
from jaxformer.convert.families.llama_like import family_of, keys_of
from jaxformer.convert.model_type import Field
from jaxformer.errors import ConfigError

OLMO = replace(LLAMA, name="olmo")
"""Family for Llama's configuration with `norm="layer", norm_epsilon=1e-5, norm_affine=False`, and with `clip_qkv`."""
OLMO2 = family_of(
    "olmo2",
    {name: torch for name, torch in NAMES.items() if name not in ("attention_norm", "feed_forward_norm")}
    | {"attention_output_norm": "post_attention_layernorm", "feed_forward_output_norm": "post_feedforward_layernorm"},
)
"""Family for Llama's configuration with `norm_position="output", qk_norm=True, qk_norm_over="all"`."""
OLMO3 = replace(OLMO2, name="olmo3")
"""Family for OLMo 2's configuration with `window` and `layer_pattern`, and with a `rotary_window_base` beside a scaling."""
EXAONE4 = replace(OLMO2, name="exaone4")
"""Family for Llama's configuration with `norm_position="output", qk_norm=True`, `window`, `layer_pattern`, and rotary positions
in layers with a window alone (`rotary_pattern`)."""

_THETA = 5e5
_KEYS = keys_of(
    {"vocab_size": Field("vocab_size", 50304), "pad_token_id": Field("padding_idx", 1)}, without=("head_dim", "mlp_bias")
)


def _undo(config: GPTConfig) -> dict[str, Any]:
    return {"num_key_value_heads": config.kv_heads} | rope_keys(config)


OLMO_TYPE = replace(
    LLAMA_TYPE,
    name="olmo",
    family=OLMO,
    keys={name: key for name, key in _KEYS.items() if name != "rms_norm_eps"} | {"clip_qkv": Field("clip_qkv", None)},
    fixed=FIXED | {"feed_forward_bias": False, "norm": "layer", "norm_affine": False},
    model="OlmoForCausalLM",
    base="OlmoModel",
    undo=_undo,
)
OLMO2_TYPE = replace(
    LLAMA_TYPE,
    name="olmo2",
    family=OLMO2,
    keys=_KEYS | {"rms_norm_eps": Field("norm_epsilon", 1e-5)},
    fixed=FIXED | {"feed_forward_bias": False, "norm_position": "output", "qk_norm": True, "qk_norm_over": "all"},
    model="Olmo2ForCausalLM",
    base="Olmo2Model",
    undo=_undo,
)


def _olmo3(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a sliding window, without `layer_types` all but every fourth, and rotary positions."""
    types = found.pop("layer_types")
    if types is None:
        types = ["sliding_attention" if i % 4 else "full_attention" for i in range(1, found["n_layers"] + 1)]
    found |= read_layers(types, found)
    parameters, scaling, theta = (found.pop(name) or {} for name in ROPE)
    if theta != _THETA:
        raise ConfigError(
            f"rope_theta = {theta} is read for all layers by transformers 4, and for some by 5; write it into rope_parameters"
        )
    whole, near = ({"rope_theta": theta} | (parameters.get(kind) or {}) for kind in ("full_attention", "sliding_attention"))
    return found | read_by_layer(parameters, whole | scaling, near, found)


def _undo_olmo3(config: GPTConfig) -> dict[str, Any]:
    keys = rope_keys(config) | {"rope_parameters": rope_by_layer(config), "layer_types": layer_types(config)}
    told = {name: value for name, value in keys.items() if name != "rope_theta" or value == _THETA}
    return {"num_key_value_heads": config.kv_heads} | told


OLMO3_TYPE = replace(
    OLMO2_TYPE,
    name="olmo3",
    family=OLMO3,
    keys={
        **OLMO2_TYPE.keys,
        "rope_theta": Field("rope_theta", _THETA),
        "sliding_window": Field("window", 4096),
        "layer_types": Field("layer_types", None),
    },
    model="Olmo3ForCausalLM",
    base="Olmo3Model",
    derive=_olmo3,
    undo=_undo_olmo3,
)


def _exaone4(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a sliding window, without `layer_types` all but every `period`-th; the others do not rotate."""
    types, period = found.pop("layer_types"), found.pop("sliding_window_pattern")
    if found["window"] is None:
        return rotary(found)
    if types is None:
        types = ["sliding_attention" if i % period else "full_attention" for i in range(1, found["n_layers"] + 1)]
    found = rotary(found | read_layers(types, found))
    return found | read_rotated([it == "sliding_attention" for it in types], found)


def _undo_exaone4(config: GPTConfig) -> dict[str, Any]:
    return sizes_of_heads(config) | rope_keys(config) | {"layer_types": layer_types(config)}


EXAONE4_TYPE = replace(
    LLAMA_TYPE,
    name="exaone4",
    family=EXAONE4,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 102400),
            "intermediate_size": Field("d_ff", 16384),
            "num_key_value_heads": Field("n_kv_heads", 32),
            "rms_norm_eps": Field("norm_epsilon", 1e-5),
            "sliding_window": Field("window", 4096),
            "sliding_window_pattern": Field("sliding_window_pattern", 4),
            "layer_types": Field("layer_types", None),
        },
        without=("attention_bias", "mlp_bias"),
    ),
    fixed=FIXED | NO_BIAS | {"norm_position": "output", "qk_norm": True},
    model="Exaone4ForCausalLM",
    base="Exaone4Model",
    derive=_exaone4,
    undo=_undo_exaone4,
)
