"""ViT, DeiT (with a distillation token) and DINOv2 (with layer scale, and with register tokens) in transformers' format."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.axes import Part
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only, Same, Task
from jaxformer.errors import ConfigError, ConversionError

PATCHES = "d c P Q -> (c P Q) d"
"""Layout of a convolution's weight whose stride is one patch."""
_STACKS = {"stack.blocks.": "encoder.layer.{layer}.", "embed.": "embeddings."}
_TABLES = {"class_token": "cls_token", "distillation_token": "distillation_token", "position": "position_embeddings"}
_NAMES = {"norm": "layernorm", "pooler.dense": "pooler.dense", "attention_norm": "layernorm_before"}
_NAMES |= {"feed_forward_norm": "layernorm_after"}
_FILE_NAMES = {"feed_forward.up": "intermediate.dense", "feed_forward.down": "output.dense"}
_MEMORY_NAMES = {"feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"}


def patch_rules(jax: str, torch: str) -> tuple[Rule, ...]:
    """Return the rules of the projection of patches, by the names of both modules; in torch it is a convolution."""
    return Rule(f"{jax}.kernel", f"{torch}.weight", PATCHES), Rule(f"{jax}.bias", f"{torch}.bias")


IMAGE_RULES = (
    *patch_rules("patch", "patch_embeddings.projection"),
    *(Rule(f"{jax}.table", torch, "1 t d -> t d") for jax, torch in _TABLES.items()),
)
"""Rules of the embedding of an image, within `embeddings.`."""
FILE_ATTENTION = projection_rules(
    "attention", "attention", ("attention.query", "attention.key", "attention.value"), "output.dense"
)
"""Rules of attention by the names in files."""
MEMORY_ATTENTION = projection_rules("attention", "attention", ("q_proj", "k_proj", "v_proj"), "o_proj")
"""Rules of attention by the names in the memory of transformers 5."""

VIT = Family(
    name="vit",
    stacks=_STACKS,
    rules=(
        *IMAGE_RULES,
        Rule("mask_token.table", "mask_token", "1 t d -> t d"),
        *FILE_ATTENTION,
        *(rule for jax, torch in (_NAMES | _FILE_NAMES).items() for rule in module_rules(jax, torch)),
    ),
)
"""Family for `VisionEncoderConfig(norm_epsilon=1e-12, pooling="dense")`, by the names in files."""
VIT_MEMORY = replace(
    VIT,
    name="vit_memory",
    stacks=_STACKS | {"stack.blocks.": "layers.{layer}."},
    rules=(
        *IMAGE_RULES,
        Rule("mask_token.table", "mask_token", "1 t d -> t d"),
        *MEMORY_ATTENTION,
        *(rule for jax, torch in (_NAMES | _MEMORY_NAMES).items() for rule in module_rules(jax, torch)),
    ),
)
"""Family for ViT's and DeiT's configurations, by the names in the memory of transformers 5."""
DEIT = replace(VIT, name="deit")
"""Family for ViT's configuration with `distillation_token=True`."""


def in_pairs(found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with sizes of images and patches as pairs, where config.json may have one number."""
    pairs = {name: found[name] for name in ("image_size", "patch_size")}
    return found | {name: (it, it) if isinstance(it, int) else tuple(it) for name, it in pairs.items()}


def size_keys(config: VisionEncoderConfig) -> dict[str, Any]:
    """Return the keys of the sizes of images and patches: one number for a square."""
    return {name: _number(getattr(config, name)) for name in ("image_size", "patch_size")}


def square_keys(config: VisionEncoderConfig) -> dict[str, Any]:
    """Return the keys of sizes for a type that has squares alone; ConversionError for other images or patches."""
    keys = size_keys(config)
    for name, size in keys.items():
        if not isinstance(size, int):
            raise ConversionError(f"{name} = {tuple(size)} is no square, and transformers' type has no others")
    return keys


def _number(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else [*pair]


def of_tensors(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the pooling and the mask token by the tensors that are there."""
    dense = any(name.endswith("pooler.dense.weight") for name in names)
    masked = any(name.endswith("embeddings.mask_token") for name in names)
    return {"pooling": "dense" if dense else "class", "mask_token": masked} | in_pairs(found)


IMAGE_KEYS = {
    "hidden_size": Field("d_model", 768),
    "num_hidden_layers": Field("n_layers", 12),
    "num_attention_heads": Field("n_heads", 12),
    "hidden_act": Field("activation", "gelu", ACTIVATIONS),
    "hidden_dropout_prob": Field("residual_dropout", 0.0, also=("embedding_dropout",)),
    "attention_probs_dropout_prob": Field("attention_dropout", 0.0),
    "image_size": Field("image_size", 224),
    "patch_size": Field("patch_size", 16),
    "num_channels": Field("channels", 3),
    "qkv_bias": Field("qkv_bias", True),
}
"""Keys that ViT and DINOv2 share."""


def image_task(name: str, starts: tuple[str, ...], names: dict[str, str], **fixed: Any) -> Task:
    """Return the task of a head for images, of the class `name`."""
    return Task(models=(name,), starts=starts, names=names, fixed=fixed)


VIT_TYPE = ModelType(
    name="vit",
    config=VisionEncoderConfig,
    family=VIT,
    memory=VIT_MEMORY,
    keys=IMAGE_KEYS
    | {
        "intermediate_size": Field("d_ff", 3072),
        "layer_norm_eps": Field("norm_epsilon", 1e-12),
        "pooler_act": Field("pooler_activation", "tanh", ACTIVATIONS),
        "pooler_output_size": Same("hidden_size"),
    },
    model="ViTModel",
    base="ViTModel",
    prefix="vit.",
    heads={"decoder.": "masked patches", "classifier.": "classification"},
    tasks={
        "image_classification": image_task(
            "ViTForImageClassification", ("classifier.",), {"head.output": "classifier"}, pooling="class"
        )
    },
    harmless=frozenset(["encoder_stride"]),
    derive=of_tensors,
    undo=size_keys,
)
_TEACHER = {"head.output": "cls_classifier", "head.distilled": "distillation_classifier"}
DEIT_TYPE = replace(
    VIT_TYPE,
    name="deit",
    family=DEIT,
    fixed={"distillation_token": True},
    model="DeiTModel",
    base="DeiTModel",
    prefix="deit.",
    heads={**VIT_TYPE.heads} | dict.fromkeys(("cls_classifier.", "distillation_classifier."), "classification"),
    tasks={
        "image_classification": image_task(
            "DeiTForImageClassification", ("classifier.",), {"head.output": "classifier"}, pooling="class"
        ),
        "distilled_image_classification": image_task(
            "DeiTForImageClassificationWithTeacher", ("cls_classifier.", "distillation_classifier."), _TEACHER, pooling="class"
        ),
    },
)

_DINO_NAMES = {"norm": "layernorm", "attention_norm": "norm1", "feed_forward_norm": "norm2"}
SCALE_RULES = tuple(
    Rule(f"{part}_layer_scale.scale", f"layer_scale{number}.lambda1")
    for number, part in ((1, "attention"), (2, "feed_forward"))
)
"""Rules of layer scale, which DINOv2 and DINOv3 share."""
_DINO_RULES = (
    *IMAGE_RULES,
    Rule("mask_token.table", "mask_token"),
    Rule("register_tokens.table", "register_tokens", "1 t d -> t d"),
    *SCALE_RULES,
    *(rule for jax, torch in _DINO_NAMES.items() for rule in module_rules(jax, torch)),
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

DINOV2 = Family(name="dinov2", stacks=_STACKS, rules=(*_DINO_RULES, *FILE_ATTENTION, *_PLAIN))
"""Family for `VisionEncoderConfig(layer_scale=1.0, mask_token=True)`, by the names in files."""
DINOV2_SWIGLU = replace(DINOV2, name="dinov2_swiglu", rules=(*_DINO_RULES, *FILE_ATTENTION, *_PACKED))
"""Family for DINOv2's configuration with `gated=True, activation="silu"`."""
DINOV2_MEMORY = replace(DINOV2, name="dinov2_memory", rules=(*_DINO_RULES, *MEMORY_ATTENTION, *_PLAIN))
"""Family for DINOv2's configuration, by the names in the memory of transformers 5."""
DINOV2_SWIGLU_MEMORY = replace(DINOV2, name="dinov2_swiglu_memory", rules=(*_DINO_RULES, *MEMORY_ATTENTION, *_APART))
"""Family as DINOV2_MEMORY, for `gated=True`."""
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
    return size_keys(config) | {"mlp_ratio": ratio}


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


def _with_registers(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    if not found["register_tokens"]:
        raise ConfigError(
            "num_register_tokens = 0 makes a DINOv2 with an empty tensor; write model_type = 'dinov2', and leave out "
            "embeddings.register_tokens"
        )
    return of_ratio(found, names)


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
    derive=_with_registers,
    model="Dinov2WithRegistersModel",
    base="Dinov2WithRegistersModel",
    prefix="dinov2_with_registers.",
    tasks={
        "image_classification": image_task(
            "Dinov2WithRegistersForImageClassification", ("classifier.",), {"head.output": "classifier"}, pooling="class_mean"
        )
    },
)
