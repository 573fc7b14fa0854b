"""Decoders with Llama's names in transformers' format: Arcee, ERNIE 4.5, Granite, Helium, Hunyuan, Nemotron,
Seed-OSS and StableLM."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.axes import Join
from jaxformer.convert.decoder_keys import PART, rope_keys
from jaxformer.convert.families.llama import FIXED, LLAMA, LLAMA_TYPE, NO_BIAS, PROJECTIONS, rotary, sizes_of_heads
from jaxformer.convert.family import Family, Rule, module_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key


def family_of(name: str, names: Mapping[str, str]) -> Family:
    """Return Llama's family with these names of modules for its own."""
    return replace(LLAMA, name=name, rules=(*PROJECTIONS, *(it for pair in names.items() for it in module_rules(*pair))))


def keys_of(changes: Mapping[str, Key], without: Collection[str] = ()) -> dict[str, Key]:
    """Return Llama's keys with these changes."""
    return {name: key for name, key in {**LLAMA_TYPE.keys, **changes}.items() if name not in without}


def normed(found: dict[str, Any]) -> dict[str, Any]:
    """Set the kind of norm of queries and keys, if they have one: each head has gains of its own."""
    return found | ({"qk_norm_kind": "layer", "qk_norm_over": "each"} if found["qk_norm"] else {})


def inverse(number: float) -> float:
    """Return 1 / number, as the shortest decimal whose inverse is the number."""
    short = round(1 / number, 9)
    return short if short and 1 / short == number else 1 / number


ARCEE = replace(LLAMA, name="arcee")
"""Family for Llama's configuration with `gated=False, activation="relu_squared"`."""
ERNIE = replace(LLAMA, name="ernie4_5")
"""Family for Llama's configuration with `rotary="interleaved"`."""
GRANITE = replace(LLAMA, name="granite")
"""Family for Llama's configuration with `embedding_multiplier`, `residual_multiplier`, `attention_scale` and `logits_scale`."""
HELIUM = replace(LLAMA, name="helium")
"""Family for Llama's configuration with `rotary="interleaved"`."""
HUNYUAN = replace(
    LLAMA,
    name="hunyuan_v1_dense",
    rules=(
        *module_rules("attention.query_norm", "self_attn.query_layernorm"),
        *module_rules("attention.key_norm", "self_attn.key_layernorm"),
        *LLAMA.rules,
    ),
)
"""Family for Llama's configuration with `qk_norm=True, qk_norm_after_rotary=True`."""
NEMOTRON = replace(LLAMA, name="nemotron")
"""Family for `GPTConfig(positions="none", rotary="half", rotary_dim=..., norm_unit_offset=True, activation="relu_squared")`."""
SEED_OSS = replace(LLAMA, name="seed_oss")
"""Family for Llama's configuration with `qkv_bias=True`."""
STABLELM = replace(
    LLAMA,
    name="stablelm",
    rules=(
        Rule("attention.query_norm.scale", "self_attn.q_layernorm.norms.{part}.weight", join=Join("N", stacked=True)),
        Rule("attention.key_norm.scale", "self_attn.k_layernorm.norms.{part}.weight", join=Join("K", stacked=True)),
        *LLAMA.rules,
    ),
)
"""Family for Llama's configuration with `norm="layer"`, a `rotary_dim`, and `parallel_residual` with `shared_norm` as in the
model; and with `qk_norm=True, qk_norm_kind="layer", qk_norm_over="each"` where it has norms of queries and keys."""

ARCEE_TYPE = replace(
    LLAMA_TYPE,
    name="arcee",
    family=ARCEE,
    keys=keys_of(
        {
            "hidden_size": Field("d_model", 2560),
            "intermediate_size": Field("d_ff", 18432),
            "max_position_embeddings": Field("context", 4096),
            "rms_norm_eps": Field("norm_epsilon", 1e-5),
            "hidden_act": Field("activation", "relu2", ACTIVATIONS),
        }
    ),
    fixed=FIXED | {"gated": False},
    model="ArceeForCausalLM",
    base="ArceeModel",
)
HELIUM_TYPE = replace(
    LLAMA_TYPE,
    name="helium",
    family=HELIUM,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 48000),
            "hidden_size": Field("d_model", 2560),
            "intermediate_size": Field("d_ff", 7040),
            "num_hidden_layers": Field("n_layers", 24),
            "num_attention_heads": Field("n_heads", 20),
            "num_key_value_heads": Field("n_kv_heads", 20),
            "head_dim": Field("head_dim", 128),
            "max_position_embeddings": Field("context", 4096),
            "rms_norm_eps": Field("norm_epsilon", 1e-8),
            "rope_theta": Field("rope_theta", 1e5),
            "pad_token_id": Field("padding_idx", 3),
            "attention_bias": Field("qkv_bias", False),
        }
    ),
    fixed=FIXED | {"rotary": "interleaved", "output_bias": False},
    model="HeliumForCausalLM",
    base="HeliumModel",
)
ERNIE_TYPE = replace(
    LLAMA_TYPE,
    name="ernie4_5",
    family=ERNIE,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 103424),
            "hidden_size": Field("d_model", 1024),
            "intermediate_size": Field("d_ff", 3072),
            "num_hidden_layers": Field("n_layers", 18),
            "num_attention_heads": Field("n_heads", 16),
            "num_key_value_heads": Field("n_kv_heads", 2),
            "head_dim": Field("head_dim", 128),
            "max_position_embeddings": Field("context", 131072),
            "rms_norm_eps": Field("norm_epsilon", 1e-5),
            "rope_theta": Field("rope_theta", 5e5),
            "pad_token_id": Field("padding_idx", 0),
            "tie_word_embeddings": Field("tied", True),
            "use_bias": Field("qkv_bias", False, also=("output_bias", "feed_forward_bias")),
        },
        without=("attention_bias", "mlp_bias", "attention_dropout"),
    ),
    fixed=FIXED | {"rotary": "interleaved"},
    model="Ernie4_5ForCausalLM",
    base="Ernie4_5Model",
    harmless=frozenset(["attention_dropout", "compression_ratio", "hidden_dropout_prob", "attention_probs_dropout_prob"]),
)
HUNYUAN_TYPE = replace(
    LLAMA_TYPE,
    name="hunyuan_v1_dense",
    family=HUNYUAN,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 290943),
            "rms_norm_eps": Field("norm_epsilon", 1e-5),
            "pad_token_id": Field("padding_idx", 0),
        },
        without=("mlp_bias",),
    ),
    fixed=FIXED | {"feed_forward_bias": False, "qk_norm": True, "qk_norm_after_rotary": True},
    model="HunYuanDenseV1ForCausalLM",
    base="HunYuanDenseV1Model",
    harmless=frozenset(["eod_token_id", "pretraining_tp"]),
)
SEED_OSS_TYPE = replace(
    LLAMA_TYPE,
    name="seed_oss",
    family=SEED_OSS,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 155136),
            "intermediate_size": Field("d_ff", 27648),
            "num_hidden_layers": Field("n_layers", 64),
            "num_attention_heads": Field("n_heads", 80),
            "num_key_value_heads": Field("n_kv_heads", 8),
            "head_dim": Field("head_dim", 128),
            "max_position_embeddings": Field("context", 524288),
            "pad_token_id": Field("padding_idx", 1),
            "attention_bias": Field("qkv_bias", True),
            "attention_out_bias": Field("output_bias", False),
            "attention_dropout": Field("attention_dropout", 0.1),
            "residual_dropout": Field("residual_dropout", 0.1),
        }
    ),
    model="SeedOssForCausalLM",
    base="SeedOssModel",
)


def _granite(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the factor of the logits, which are divided there."""
    return rotary(found | {"logits_scale": inverse(found.pop("logits_scaling"))})


def _undo_granite(config: GPTConfig) -> dict[str, Any]:
    scale = config.head_width**-0.5 if config.attention_scale is None else config.attention_scale
    heads = {"num_key_value_heads": config.kv_heads}
    return rope_keys(config) | heads | {"attention_multiplier": scale, "logits_scaling": inverse(config.logits_scale)}


GRANITE_TYPE = replace(
    LLAMA_TYPE,
    name="granite",
    family=GRANITE,
    keys=keys_of(
        {
            "embedding_multiplier": Field("embedding_multiplier", 1.0),
            "residual_multiplier": Field("residual_multiplier", 1.0),
            "attention_multiplier": Field("attention_scale", 1.0),
            "logits_scaling": Field("logits_scaling", 1.0),
        },
        without=("head_dim",),
    ),
    model="GraniteForCausalLM",
    base="GraniteModel",
    derive=_granite,
    undo=_undo_granite,
)


def _nemotron(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return rotary(found)


NEMOTRON_TYPE = replace(
    LLAMA_TYPE,
    name="nemotron",
    family=NEMOTRON,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 256000),
            "hidden_size": Field("d_model", 6144),
            "intermediate_size": Field("d_ff", 24576),
            "num_attention_heads": Field("n_heads", 48),
            "max_position_embeddings": Field("context", 4096),
            "norm_eps": Field("norm_epsilon", 1e-5),
            "hidden_act": Field("activation", "relu2", ACTIVATIONS),
            PART: Field(PART, 0.5),
        },
        without=("rms_norm_eps",),
    ),
    fixed=FIXED | {"norm": "layer", "norm_unit_offset": True, "gated": False},
    model="NemotronForCausalLM",
    base="NemotronModel",
    undo=lambda config: sizes_of_heads(config) | rope_keys(config, part=True),
)


def _stablelm(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set one norm for both branches of a parallel residual connection."""
    return rotary(normed(found) | {"shared_norm": found["parallel_residual"]})


STABLELM_TYPE = replace(
    LLAMA_TYPE,
    name="stablelm",
    family=STABLELM,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 50304),
            "hidden_size": Field("d_model", 2560),
            "intermediate_size": Field("d_ff", 6912),
            "num_key_value_heads": Field("n_kv_heads", 32),
            "max_position_embeddings": Field("context", 4096),
            "layer_norm_eps": Field("norm_epsilon", 1e-5),
            "use_qkv_bias": Field("qkv_bias", False),
            "use_parallel_residual": Field("parallel_residual", False),
            "hidden_dropout": Field("residual_dropout", 0.0),  # torch drops nothing of attention's output
            "qk_layernorm": Field("qk_norm", False),
            PART: Field(PART, 0.25),
        },
        without=("rms_norm_eps", "head_dim", "attention_bias", "mlp_bias"),
    ),
    fixed=FIXED | NO_BIAS | {"norm": "layer"},
    model="StableLmForCausalLM",
    base="StableLmModel",
    derive=_stablelm,
    undo=lambda config: {"num_key_value_heads": config.kv_heads} | rope_keys(config, part=True),
)
