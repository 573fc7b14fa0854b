"""DINOv3 (Siméoni et al. 2025) in transformers' format: rotary positions by row and column, registers, layer scale."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.families.images.vit import MEMORY_ATTENTION, SCALE_RULES, in_pairs, patch_rules, size_keys
from jaxformer.convert.family import Family, Rule, module_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only, Same
from jaxformer.errors import ConfigError

_TOKENS = {"class_token": "cls_token", "mask_token": "mask_token", "register_tokens": "register_tokens"}
_NAMES = {"attention_norm": "norm1", "feed_forward_norm": "norm2", "norm": "norm"}
_NAMES |= {f"feed_forward.{it}": f"mlp.{it}_proj" for it in ("gate", "up", "down")}

DINOV3 = Family(
    name="dinov3_vit",
    stacks={"stack.blocks.": "layer.{layer}.", "embed.": "embeddings."},
    rules=(
        *patch_rules("patch", "patch_embeddings"),
        *(Rule(f"{jax}.table", torch, "1 t d -> t d") for jax, torch in _TOKENS.items()),
        *MEMORY_ATTENTION,
        *SCALE_RULES,
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
    ),
)
"""Family for `VisionEncoderConfig(learned_positions=False, rotary="half", rotary_base=100.0, key_bias=False, layer_scale=1.0,
mask_token=True, register_tokens=4)`, by the names in files."""
DINOV3_MEMORY = replace(DINOV3, name="dinov3_vit_memory", stacks={**DINOV3.stacks, "stack.blocks.": "model.layer.{layer}."})
"""Family for DINOv3's configuration, by the names in the memory of transformers 5."""


def without_registers(family: Family) -> Callable[[Any], Family | None]:
    """Return the function that gives a configuration without registers its family: transformers has a tensor of none."""
    bare = replace(family, ignored={"embeddings.register_tokens": "it has no rows"})
    return lambda config: None if config.register_tokens else bare


def of_biases(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the sizes as pairs, and read `key_bias` beside biases of queries and values alone."""
    if found["key_bias"] and not found["qkv_bias"]:
        raise ConfigError("keys have a bias, queries and values have none")
    return in_pairs(found) | {"key_bias": found["key_bias"] or not found["qkv_bias"]}


def own_keys(config: VisionEncoderConfig) -> dict[str, Any]:
    """Return the keys of sizes, and the key of the bias of keys, which are none where queries have none."""
    return size_keys(config) | {"key_bias": config.qkv_bias and config.key_bias}


DINOV3_TYPE = ModelType(
    name="dinov3_vit",
    config=VisionEncoderConfig,
    family=DINOV3,
    memory=DINOV3_MEMORY,
    variant=without_registers(DINOV3),
    memory_variant=without_registers(DINOV3_MEMORY),
    keys={
        "hidden_size": Field("d_model", 384),
        "intermediate_size": Field("d_ff", 1536),
        "num_hidden_layers": Field("n_layers", 12),
        "num_attention_heads": Field("n_heads", 6),
        "hidden_act": Field("activation", "gelu", ACTIVATIONS),
        "use_gated_mlp": Field("gated", False),
        "mlp_bias": Field("feed_forward_bias", True),
        "query_bias": Field("qkv_bias", True),
        "value_bias": Same("query_bias"),
        "key_bias": Field("key_bias", False),
        "proj_bias": Field("output_bias", True),
        "attention_dropout": Field("attention_dropout", 0.0),
        "layer_norm_eps": Field("norm_epsilon", 1e-5),
        "layerscale_value": Field("layer_scale", 1.0),
        "rope_theta": Field("rotary_base", 100.0),
        "num_register_tokens": Field("register_tokens", 0),
        "image_size": Field("image_size", 224),
        "patch_size": Field("patch_size", 16),
        "num_channels": Field("channels", 3),
        "drop_path_rate": Only(0.0, "training would leave out sub-layers at random, and here it would not"),
    },
    fixed={"learned_positions": False, "rotary": "half", "mask_token": True},
    model="DINOv3ViTModel",
    base="DINOv3ViTModel",
    prefix="dinov3_vit.",
    harmless=frozenset(
        ["apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "return_class_token", "stage_names"]
        + [f"pos_embed_{it}" for it in ("jitter", "rescale", "shift")]  # in training, positions move at random
    ),
    derive=of_biases,
    undo=own_keys,
)
