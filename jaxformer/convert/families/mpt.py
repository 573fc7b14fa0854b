"""MPT in transformers' format: ALiBi and no biases; queries, keys and values are packed."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.families.bloom import BLOOM_TYPE
from jaxformer.convert.family import Family, module_rules, packed_rules
from jaxformer.convert.model_type import Field, Only
from jaxformer.errors import ConfigError

_NAMES = {
    "embed.token": "transformer.wte",
    "attention_norm": "norm_1",
    "attention.out": "attn.out_proj",
    "feed_forward_norm": "norm_2",
    "feed_forward.up": "ffn.up_proj",
    "feed_forward.down": "ffn.down_proj",
    "norm": "transformer.norm_f",
    "head": "lm_head",
}

MPT = Family(
    name="mpt",
    stacks={"stack.blocks.": "transformer.blocks.{layer}."},
    rules=(
        *packed_rules("attention", "attn.Wqkv", "(K G H + K H + K H)"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
    tied={"lm_head.weight": "transformer.wte.weight"},
)
"""Family for `GPTConfig(positions="none", relative_bias="alibi", norm_bias=False, qkv_bias=False, output_bias=False,
feed_forward_bias=False, tied=True)`, with `clip_qkv` and `attention_scale`; projections are fused or separate."""

_READ = {"attn_pdrop": "attention_dropout", "clip_qkv": "clip_qkv", "softmax_scale": "attention_scale"}
_ONLY = {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False}
"""Keys of `attn_config` with one supported value, which a missing key means too."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set what `attn_config` says of attention, and the width of the feed-forward layer."""
    attention = found.pop("attn_config") or {}
    for name, value in _ONLY.items():
        if attention.get(name, value) != value:
            raise ConfigError(f"{name} = {attention[name]!r} of attn_config is not supported ({value!r} is)")
    own = {field: attention.get(name) for name, field in _READ.items()}
    own |= {"attention_dropout": float(attention.get("attn_pdrop") or 0), "clip_qkv": own["clip_qkv"] or None}
    return found | own | {"d_ff": 4 * found["d_model"]}


def _undo(config: GPTConfig) -> dict[str, Any]:
    attention = {name: getattr(config, field) for name, field in _READ.items()} | _ONLY
    attention["attn_pdrop"] = int(config.attention_dropout)  # transformers takes whole numbers alone
    return {"attn_config": attention}


MPT_TYPE = replace(
    BLOOM_TYPE,
    name="mpt",
    family=MPT,
    keys={
        "vocab_size": Field("vocab_size", 50368),
        "d_model": Field("d_model", 2048),
        "n_layers": Field("n_layers", 24),
        "n_heads": Field("n_heads", 16),
        "expansion_ratio": Only(4, "transformers computes with 4, whatever it is"),
        "max_seq_len": Field("context", 2048),
        "layer_norm_epsilon": Field("norm_epsilon", 1e-5),
        "resid_pdrop": Field("residual_dropout", 0.0),
        "emb_pdrop": Field("embedding_dropout", 0.0),
        "attn_config": Field("attn_config", None),
        "tie_word_embeddings": Field("tied", True),
        "no_bias": Only(True, "linear layers would have biases"),
        "logit_scale": Only(None, "logits would be scaled in the first implementation, and are not in transformers"),
    },
    fixed={
        "positions": "none",
        "relative_bias": "alibi",
        "norm_bias": False,
        "qkv_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
        "activation": "gelu",
        "projections": "fused",
    },
    model="MptForCausalLM",
    base="MptModel",
    harmless=frozenset(["embedding_fraction", "fc_type", "ffn_config", "init_config", "init_device", "learned_pos_emb"])
    | {"norm_type", "tokenizer_name", "use_pad_tok_in_ffn", "verbose"},
    derive=_derive,
    undo=_undo,
    unwritten=(),
)
