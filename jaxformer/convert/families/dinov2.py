"""DINOv2 in transformers' format (`Dinov2Model`, `Dinov2ForImageClassification`), with and without register tokens."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.axes import Part
from jaxformer.convert.families.vit import (
    FILE_ATTENTION,
    IMAGE_KEYS,
    IMAGE_RULES,
    MEMORY_ATTENTION,
    image_task,
    in_pairs,
    size_keys,
)
from jaxformer.convert.family import Family, Rule, module_rules
from jaxformer.convert.model_type import Field, ModelType, Only

_NAMES = {"norm": "layernorm", "attention_norm": "norm1", "feed_forward_norm": "norm2"}
_SCALES = {"attention_layer_scale.scale": "layer_scale1.lambda1", "feed_forward_layer_scale.scale": "layer_scale2.lambda1"}
_RULES = (
    *IMAGE_RULES,
    Rule("mask_token.table", "mask_token"),
    Rule("register_tokens.table", "register_tokens", "1 t d -> t d"),
    *(Rule(jax, torch) for jax, torch in _SCALES.items()),
    *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
)
_PLAIN = (*module_rules("feed_forward.up", "mlp.fc1"), *module_rules("feed_forward.down", "mlp.fc2"))
_PACKED = (
    *(
        Rule(f"{half}.{leaf}", f"mlp.weights_in.{name}", layout, Part(number, 2))
        for number, half in enumerate(("feed_forward.gate", "feed_forward.up"))
        for leaf, name, layout in (("kernel", "weight", "transposed"), ("bias", "bias", "same"))
    ),
    *module_rules("feed_forward.down", "mlp.weights_out"),
)
_APART = tuple(rule for it in ("gate", "up", "down") for rule in module_rules(f"feed_forward.{it}", f"mlp.{it}_proj"))
STACKS = {"stack.blocks.": "encoder.layer.{layer}.", "embed.": "embeddings."}

DINOV2 = Family(name="dinov2", stacks=STACKS, rules=(*_RULES, *FILE_ATTENTION, *_PLAIN))
"""Family for `VisionEncoderConfig(layer_scale=1.0, mask_token=True)`, by the names in files."""
DINOV2_SWIGLU = replace(DINOV2, name="dinov2_swiglu", rules=(*_RULES, *FILE_ATTENTION, *_PACKED))
"""Family for DINOv2's configuration with `gated=True, activation="silu"`."""
DINOV2_MEMORY = replace(DINOV2, name="dinov2_memory", rules=(*_RULES, *MEMORY_ATTENTION, *_PLAIN))
"""Family for DINOv2's configuration, by the names in the memory of transformers 5."""
DINOV2_SWIGLU_MEMORY = replace(DINOV2, name="dinov2_swiglu_memory", rules=(*_RULES, *MEMORY_ATTENTION, *_APART))
"""As DINOV2_MEMORY, for `gated=True`."""
MOST_RATIO = 64


def gated_width(width: int) -> int:
    """Width of the gated feed-forward layer in place of one of this width: two thirds, rounded up to a multiple of 8."""
    return (int(width * 2 / 3) + 7) // 8 * 8


def of_ratio(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of the feed-forward layer, by its ratio to the model's."""
    found = in_pairs(found)
    width = int(found["d_model"] * found.pop("ratio"))
    if found["gated"]:
        found |= {"activation": "silu"}
    return found | {"d_ff": gated_width(width) if found["gated"] else width}


def ratio_keys(config: VisionEncoderConfig) -> dict[str, Any]:
    """Return the keys of sizes, and the ratio of the widths."""
    width = gated_width if config.gated else int
    ratio = next((n for n in range(1, MOST_RATIO) if width(config.d_model * n) == config.d_ff), 1)
    return size_keys(config) | {"mlp_ratio": ratio, "hidden_act": "gelu" if config.gated else _activation(config)}


def _activation(config: VisionEncoderConfig) -> str:
    words = IMAGE_KEYS["hidden_act"].values or {}
    return next((word for word, mine in words.items() if mine == config.activation), config.activation)


DINOV2_TYPE = ModelType(
    name="dinov2",
    config=VisionEncoderConfig,
    family=DINOV2,
    memory=DINOV2_MEMORY,
    variant=lambda config: DINOV2_SWIGLU if config.gated else None,
    memory_variant=lambda config: DINOV2_SWIGLU_MEMORY if config.gated else None,
    keys=IMAGE_KEYS
    | {
        "mlp_ratio": Field("ratio", 4),
        "layer_norm_eps": Field("norm_epsilon", 1e-6),
        "layerscale_value": Field("layer_scale", 1.0),
        "patch_size": Field("patch_size", 14),
        "use_swiglu_ffn": Field("gated", False),
        "use_mask_token": Field("mask_token", True),
        "hidden_dropout_prob": Field("embedding_dropout", 0.0),
        "drop_path_rate": Only(0.0, "training would leave out sub-layers at random, and here it would not"),
    },
    model="Dinov2Model",
    base="Dinov2Model",
    prefix="dinov2.",
    heads={"classifier.": "classification"},
    tasks={
        "image_classification": image_task(
            "Dinov2ForImageClassification", ("classifier.",), {"head.output": "classifier"}, pooling="class_mean"
        )
    },
    harmless=frozenset(["apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names"]),
    derive=of_ratio,
    undo=ratio_keys,
)
DINOV2_WITH_REGISTERS = replace(DINOV2, name="dinov2_with_registers")
"""Family for DINOv2's configuration with `register_tokens=4`."""
DINOV2_WITH_REGISTERS_TYPE = replace(
    DINOV2_TYPE,
    name="dinov2_with_registers",
    family=DINOV2_WITH_REGISTERS,
    keys={
        **{name: key for name, key in DINOV2_TYPE.keys.items() if name != "use_mask_token"},
        "num_register_tokens": Field("register_tokens", 4),
        "patch_size": Field("patch_size", 16),
    },
    fixed={"mask_token": True},
    model="Dinov2WithRegistersModel",
    base="Dinov2WithRegistersModel",
    prefix="dinov2_with_registers.",
    tasks={
        "image_classification": image_task(
            "Dinov2WithRegistersForImageClassification", ("classifier.",), {"head.output": "classifier"}, pooling="class_mean"
        )
    },
)
