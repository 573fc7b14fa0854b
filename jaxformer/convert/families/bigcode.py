"""GPT-BigCode (SantaCoder, StarCoder) and StarCoder2 in transformers' format."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.convert.decoder_keys import rope_keys
from jaxformer.convert.families.gpt2 import GPT2, GPT2_TYPE
from jaxformer.convert.families.llama import FIXED, LLAMA_TYPE, NAMES
from jaxformer.convert.families.llama_like import family_of, keys_of
from jaxformer.convert.family import module_rules, packed_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Only

_NAMES = {
    "embed.token": "transformer.wte",
    "embed.position": "transformer.wpe",
    "attention_norm": "ln_1",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
_MODULES = tuple(rule for pair in _NAMES.items() for rule in module_rules(*pair))

BIGCODE = replace(GPT2, name="gpt_bigcode", rules=(*packed_rules("attention", "attn.c_attn", "(K G H + K H + K H)"), *_MODULES))
"""Family for GPT-2's configuration with `n_kv_heads=1`."""
BIGCODE_HEADS = replace(GPT2, name="gpt_bigcode_heads", rules=(*packed_rules("attention", "attn.c_attn"), *_MODULES))
"""Family for GPT-2's configuration, packed head by head."""
STARCODER2 = family_of("starcoder2", NAMES | {"feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"})
"""Family for `GPTConfig(positions="none", rotary="half", activation="gelu_tanh")`, with its `n_kv_heads` and `window`."""


def _bigcode(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of the feed-forward layer, and the number of key/value heads."""
    d_ff = 4 * found["d_model"] if found["d_ff"] is None else found["d_ff"]
    return found | {"d_ff": d_ff, "n_kv_heads": 1 if found.pop("multi_query") else None}


BIGCODE_TYPE = replace(
    GPT2_TYPE,
    name="gpt_bigcode",
    family=BIGCODE,
    keys={name: key for name, key in GPT2_TYPE.keys.items() if name not in ("scale_attn_by_inverse_layer_idx",)}
    | {
        "activation_function": Field("activation", "gelu_pytorch_tanh", ACTIVATIONS),
        "multi_query": Field("multi_query", True),
    },
    model="GPTBigCodeForCausalLM",
    base="GPTBigCodeModel",
    heads={"score.": "classification", "classifier.": "classification"},
    harmless=GPT2_TYPE.harmless
    | {"attention_softmax_in_fp32", "inference_runner", "max_batch_size", "max_sequence_length", "num_key_value_heads"}
    | {"pad_key_length", "pre_allocate_kv_cache", "scale_attention_softmax_in_fp32", "validate_runner_input"},
    derive=_bigcode,
    undo=lambda config: {"multi_query": config.kv_heads == 1},
    variant=lambda config: BIGCODE_HEADS if config.kv_heads != 1 else None,
)
STARCODER2_TYPE = replace(
    LLAMA_TYPE,
    name="starcoder2",
    family=STARCODER2,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 49152),
            "hidden_size": Field("d_model", 3072),
            "intermediate_size": Field("d_ff", 12288),
            "num_hidden_layers": Field("n_layers", 30),
            "num_attention_heads": Field("n_heads", 24),
            "num_key_value_heads": Field("n_kv_heads", 2),
            "max_position_embeddings": Field("context", 4096),
            "norm_epsilon": Field("norm_epsilon", 1e-5),
            "hidden_act": Field("activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "gelu_tanh"} | ACTIVATIONS),
            "sliding_window": Field("window", None),
            "use_bias": Field("qkv_bias", True, also=("output_bias", "feed_forward_bias")),
            "residual_dropout": Field("residual_dropout", 0.0),
            "embedding_dropout": Field("embedding_dropout", 0.0),
            "tie_word_embeddings": Field("tied", True),
            "norm_type": Only("layer_norm", "norms would be of another kind"),
            "mlp_type": Only("default", "the feed-forward layer would be of another kind"),
        },
        without=("rms_norm_eps", "head_dim", "attention_bias", "mlp_bias"),
    ),
    fixed=FIXED | {"norm": "layer", "gated": False},
    model="Starcoder2ForCausalLM",
    base="Starcoder2Model",
    harmless=frozenset(
        ["activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "scale_attention_softmax_in_fp32"]
    )
    | {"scale_attn_weights"},
    undo=lambda config: {"num_key_value_heads": config.kv_heads} | rope_keys(config),
)
