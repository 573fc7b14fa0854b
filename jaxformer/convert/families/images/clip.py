"""CLIP and SigLIP in transformers' format (`CLIPModel`, `SiglipModel`), and their images' encoders alone."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.models import EncoderConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.axes import Axes
from jaxformer.convert.families.images.vit import in_pairs, patch_rules, square_keys
from jaxformer.convert.family import Family, Rule, attention_rules, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType

HIGHEST = 2
"""End of a text in config.json with which transformers takes the state of the highest id instead."""
_LAYER = {"attention_norm": "layer_norm1", "feed_forward_norm": "layer_norm2"}
_LAYER |= {"feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"}
_LAYERS = (
    *projection_rules("attention", "self_attn", ("q_proj", "k_proj", "v_proj"), "out_proj"),
    *(rule for jax, torch in _LAYER.items() for rule in module_rules(jax, torch)),
)
_POOLER = {"norm": "layernorm", "feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"}
_IMAGES = (
    *patch_rules("embed.patch", "embeddings.patch_embedding"),
    Rule("embed.class_token.table", "embeddings.class_embedding", "d -> 1 d"),
    *module_rules("embed.position", "embeddings.position_embedding"),
    *module_rules("embed.norm", "pre_layrnorm"),
    Rule("pooler.query.table", "head.probe", "1 t d -> t d"),
    *attention_rules("pooler.attention", "head.attention"),
    *(rule for jax, torch in _POOLER.items() for rule in module_rules(f"pooler.{jax}", f"head.{torch}")),
    *_LAYERS,
    *module_rules("norm", "post_layernorm"),
)
_IDS = {"embeddings.position_ids": "0, 1, 2, ..., which the model counts"}

CLIP_VISION = Family(name="clip_vision_model", stacks={"stack.blocks.": "encoder.layers.{layer}."}, rules=_IMAGES, ignored=_IDS)
"""Family for `VisionEncoderConfig(activation="quick_gelu", patch_bias=False, embedding_norm=True, pooled_norm=True)`."""
SIGLIP_VISION = replace(CLIP_VISION, name="siglip_vision_model")
"""Family for `VisionEncoderConfig(activation="gelu_tanh", norm_epsilon=1e-6, class_token=False, pooling="attention")`."""
CLIP = Family(
    name="clip",
    stacks={
        f"{ours}.{rest}": f"{ours}_model.{torch}"
        for ours in ("text", "vision")
        for rest, torch in (("stack.blocks.", "encoder.layers.{layer}."), ("", ""))
    },
    rules=(
        *(
            Rule(f"text.norm.{ours}", f"text_model.final_layer_norm.{name}")
            for ours, name in (("scale", "weight"), ("bias", "bias"))
        ),
        *module_rules("embed.token", "embeddings.token_embedding"),
        *module_rules("text_projection", "text_projection"),
        *module_rules("image_projection", "visual_projection"),
        Rule("logit_scale", "logit_scale"),
        *_IMAGES,
    ),
    ignored=_IDS,
)
"""Family for `DualEncoderConfig`s of CLIP's two encoders."""
_ONE = Axes((1,), (1,), (0,), ())
SIGLIP = replace(
    CLIP,
    name="siglip",
    rules=(
        *module_rules("text_projection", "text_model.head"),
        *(Rule(name, name, _ONE) for name in ("logit_scale", "logit_bias")),
        *CLIP.rules,
    ),
)
"""Family for `DualEncoderConfig`s of SigLIP's two encoders, with `logit_bias`."""

_SIZES = {
    "hidden_size": Field("d_model", 768),
    "num_hidden_layers": Field("n_layers", 12),
    "num_attention_heads": Field("n_heads", 12),
    "intermediate_size": Field("d_ff", 3072),
    "hidden_act": Field("activation", "quick_gelu", ACTIVATIONS),
    "layer_norm_eps": Field("norm_epsilon", 1e-5),
    "attention_dropout": Field("attention_dropout", 0.0),
}
_PIXELS = {
    "image_size": Field("image_size", 224),
    "patch_size": Field("patch_size", 32),
    "num_channels": Field("channels", 3),
}
_INITIAL = frozenset(["dropout", "initializer_factor", "projection_dim"])
_SIGLIP = {"hidden_act": Field("activation", "gelu_pytorch_tanh", ACTIVATIONS), "layer_norm_eps": Field("norm_epsilon", 1e-6)}

CLIP_VISION_TYPE = ModelType(
    name="clip_vision_model",
    config=VisionEncoderConfig,
    family=CLIP_VISION,
    keys=_SIZES | _PIXELS,
    fixed={"patch_bias": False, "embedding_norm": True, "pooled_norm": True},
    model="CLIPVisionModel",
    base="CLIPVisionModel",
    prefix="vision_model.",
    heads={"visual_projection.": "vectors in one space with texts"},
    harmless=_INITIAL,
    derive=lambda found, names: in_pairs(found),
    undo=square_keys,
)
SIGLIP_VISION_TYPE = replace(
    CLIP_VISION_TYPE,
    name="siglip_vision_model",
    family=SIGLIP_VISION,
    keys=_SIZES | _PIXELS | _SIGLIP | {"patch_size": Field("patch_size", 16), "vision_use_head": Field("pooled", True)},
    fixed={"class_token": False},
    model="SiglipVisionModel",
    base="SiglipVisionModel",
    heads={},
    derive=lambda found, names: _pooled(in_pairs(found)),
    undo=lambda config: square_keys(config) | {"vision_use_head": config.pooling == "attention"},
)


def _pooled(found: dict[str, Any]) -> dict[str, Any]:
    """Set the pooling: attention, or without a head the mean of all patches."""
    return {"pooling": "attention" if found.pop("pooled") else "mean"} | found


_CLIP_TEXT_TYPE = ModelType(
    name="clip_text_model",
    config=EncoderConfig,
    family=CLIP,
    keys=_SIZES
    | {
        "vocab_size": Field("vocab_size", 49408),
        "max_position_embeddings": Field("context", 77),
        "hidden_size": Field("d_model", 512),
        "num_attention_heads": Field("n_heads", 8),
        "intermediate_size": Field("d_ff", 2048),
    },
    fixed={"causal": True},
    model="CLIPTextModel",
    base="CLIPTextModel",
    prefix="text_model.",
    harmless=_INITIAL,
)
_SIGLIP_TEXT_TYPE = replace(
    _CLIP_TEXT_TYPE,
    name="siglip_text_model",
    family=SIGLIP,
    keys=_SIZES | _SIGLIP | {"vocab_size": Field("vocab_size", 32000), "max_position_embeddings": Field("context", 64)},
    fixed={},
    model="SiglipTextModel",
    base="SiglipTextModel",
    harmless=frozenset(["projection_size"]),
)


def _by_end(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the pooling of texts by the id at their end."""
    return found | ({"text_pooling": "highest", "end": None} if found["end"] == HIGHEST else {"text_pooling": "end"})


CLIP_TYPE = ModelType(
    name="clip",
    config=DualEncoderConfig,
    family=CLIP,
    keys={
        "projection_dim": Field("width", 512),
        "logit_scale_init_value": Field("logit_scale", 2.6592),
        "text_config.eos_token_id": Field("end", 49407),
    },
    parts={"text_config": ("text", _CLIP_TEXT_TYPE), "vision_config": ("vision", CLIP_VISION_TYPE)},
    model="CLIPModel",
    base="CLIPModel",
    prefix="",
    harmless=_INITIAL,
    derive=_by_end,
    undo=lambda config: {"text_config.eos_token_id": HIGHEST if config.text_pooling == "highest" else config.end},
)


def _of_text_width(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of the vectors: where config.json has none, it is the text's."""
    return found | {"width": found["text"].d_model if found["width"] is None else found["width"]}


SIGLIP_TYPE = ModelType(
    name="siglip",
    config=DualEncoderConfig,
    family=SIGLIP,
    keys={"text_config.projection_size": Field("width", None)},
    fixed={
        "text_pooling": "last",
        "image_projection": False,
        "text_projection_bias": True,
        "logit_scale": 2.302585,
        "logit_bias": -10.0,
    },
    parts={"text_config": ("text", _SIGLIP_TEXT_TYPE), "vision_config": ("vision", SIGLIP_VISION_TYPE)},
    model="SiglipModel",
    base="SiglipModel",
    prefix="",
    harmless=_INITIAL,
    derive=_of_text_width,
)
