"""MiniCPM 3 in transformers' format: DeepSeek's latent attention, and factors of embeddings, sub-layers and logits."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.families.deepseek_kin.deepseek import HEADS, YOUTU, check_code, latent_keys, read_latents
from jaxformer.convert.families.llama import FIXED, LLAMA_TYPE
from jaxformer.convert.model_type import Field

MINICPM3 = replace(YOUTU, name="minicpm3")
"""Family for Llama's configuration with `kv_latent`, `query_latent`, `head_dim`, `rotary_dim`, `value_dim`,
`embedding_multiplier`, `residual_multiplier` and `logits_scale`."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of values and the factors: null stands for the width of a head, and for no factor."""
    width, depth, base = found["d_model"], found.pop("scale_depth"), found.pop("dim_model_base")
    check_code(found, ("configuration_minicpm", "modeling_minicpm"))
    return read_latents(found) | {
        "value_dim": found["value_dim"] or width // found["n_heads"],
        "residual_multiplier": 1.0 if depth is None else depth / math.sqrt(found["n_layers"]),
        "logits_scale": 1.0 if base is None else base / width,
    }


def _undo(config: GPTConfig) -> dict[str, Any]:
    root = math.sqrt(config.n_layers)
    depth = root * config.residual_multiplier
    short = round(depth, 12)
    factors = {"scale_depth": short if short / root == config.residual_multiplier else depth}
    return latent_keys(config) | factors | {"dim_model_base": round(config.logits_scale * config.d_model)}


MINICPM3_TYPE = replace(
    LLAMA_TYPE,
    name="minicpm3",
    family=MINICPM3,
    keys={name: key for name, key in HEADS.items() if name != "rope_interleave"}
    | {
        "vocab_size": Field("vocab_size", 73448),
        "hidden_size": Field("d_model", 2560),
        "intermediate_size": Field("d_ff", 6400),
        "num_hidden_layers": Field("n_layers", 62),
        "num_attention_heads": Field("n_heads", 40),
        "max_position_embeddings": Field("context", 32768),
        "rms_norm_eps": Field("norm_epsilon", 1e-5),
        "tie_word_embeddings": Field("tied", True),
        "mlp_bias": Field("feed_forward_bias", False),
        "kv_lora_rank": Field("kv_latent", 256),
        "q_lora_rank": Field("query_latent", 768),
        "qk_nope_head_dim": Field("latent_units", 64),
        "qk_rope_head_dim": Field("rotary_dim", 32),
        "v_head_dim": Field("value_dim", None),
        "scale_emb": Field("embedding_multiplier", 12),
        "scale_depth": Field("scale_depth", 1.4),
        "dim_model_base": Field("dim_model_base", 256),
        "auto_map": Field("code", None),
    },
    fixed=FIXED,
    model="MiniCPM3ForCausalLM",
    base="MiniCPM3Model",
    harmless=frozenset(["head_dim", "qk_head_dim", "pretraining_tp"]),
    derive=_derive,
    undo=_undo,
)
