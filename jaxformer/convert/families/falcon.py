"""Falcon in transformers' format: multi-query attention beside the feed-forward layer (7B), or groups of heads and two norms
(40B, 180B, 11B), or ALiBi in place of rotary positions (RW)."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import ROPE, rope_keys, take_rope
from jaxformer.convert.family import Family, module_rules, packed_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType
from jaxformer.errors import ConfigError

_NAMES = {
    "embed.token": "transformer.word_embeddings",
    "attention.out": "self_attention.dense",
    "feed_forward.up": "mlp.dense_h_to_4h",
    "feed_forward.down": "mlp.dense_4h_to_h",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
_RULES = (
    *packed_rules("attention", "self_attention.query_key_value"),
    *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
)
_NORMS = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
_TWO_NORMS = {"attention_norm": "ln_attn", "feed_forward_norm": "ln_mlp"}

FALCON = Family(
    name="falcon",
    stacks={"stack.blocks.": "transformer.h.{layer}."},
    rules=(*_RULES, *(rule for pair in _NORMS.items() for rule in module_rules(*pair))),
    tied={"lm_head.weight": "transformer.word_embeddings.weight"},
    ignored={"rotary_emb.inv_freq": "the angles of rotary positions, which the model computes"},
)
"""Family for `GPTConfig(positions="none", rotary="half", tied=True)` without biases of linear layers,
with `n_kv_heads`, `parallel_residual` and `shared_norm`, or `rotary="none", relative_bias="alibi_bfloat16"`; projections are
fused or separate."""
FALCON_TWO = replace(
    FALCON, name="falcon_two_norms", rules=(*_RULES, *(rule for pair in _TWO_NORMS.items() for rule in module_rules(*pair)))
)
"""Family for Falcon's configuration with a norm for each branch of a parallel residual connection."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the number of key/value heads, the norms, and rotary positions."""
    newer, norms, single = (found.pop(name) for name in ("new_decoder_architecture", "num_ln", "multi_query"))
    norms = norms or (2 if newer else 1)
    if (newer != (norms == 2) and norms == 2) or (newer and not found["parallel_residual"]):
        raise ConfigError("num_ln_in_parallel_attn = 2 goes with new_decoder_architecture, and that with parallel_attn")
    if not newer:
        if not single and found["n_kv_heads"] not in (None, found["n_heads"]):
            raise ConfigError(f"n_kv_heads = {found['n_kv_heads']} differs from n_heads = {found['n_heads']}; take it out")
        found["n_kv_heads"] = 1 if single else found["n_heads"]
    if found["d_ff"] is None:
        found["d_ff"] = 4 * found["d_model"]
    rope = take_rope(found)
    if found["relative_bias"] != "none":  # transformers makes rotary positions too, and does not use them
        rope = {"rotary": "none", "projections": "separate"}  # torch packs them in another order, by groups of heads
    return found | rope | {"shared_norm": found["parallel_residual"] and norms == 1}


def _undo(config: GPTConfig) -> dict[str, Any]:
    two = config.parallel_residual and not config.shared_norm
    newer = two or config.kv_heads not in (1, config.n_heads)
    norms = {"num_ln_in_parallel_attn": 2 if two else 1} if newer else {}
    heads = {"num_kv_heads": config.kv_heads, "multi_query": config.kv_heads == 1}
    return rope_keys(config) | norms | heads | {"new_decoder_architecture": newer}


FALCON_TYPE = ModelType(
    name="falcon",
    config=GPTConfig,
    family=FALCON,
    keys={
        "vocab_size": Field("vocab_size", 65024),
        "hidden_size": Field("d_model", 4544),
        "ffn_hidden_size": Field("d_ff", None),
        "num_hidden_layers": Field("n_layers", 32),
        "num_attention_heads": Field("n_heads", 71),
        "num_kv_heads": Field("n_kv_heads", None),
        "max_position_embeddings": Field("context", 2048),
        "activation": Field("activation", "gelu", ACTIVATIONS),
        "layer_norm_epsilon": Field("norm_epsilon", 1e-5),
        "new_decoder_architecture": Field("new_decoder_architecture", False),
        "num_ln_in_parallel_attn": Field("num_ln", None),
        "multi_query": Field("multi_query", True),
        "parallel_attn": Field("parallel_residual", True),
        "bias": Field("qkv_bias", False, also=("output_bias", "feed_forward_bias")),
        "hidden_dropout": Field("residual_dropout", 0.0),  # torch drops the sum of both branches, or attention's output
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie_word_embeddings": Field("tied", True),
        "alibi": Field("relative_bias", False, {False: "none", True: "alibi_bfloat16", None: "none"}),
        **ROPE,
    },
    fixed={"positions": "none", "rotary": "half", "projections": "fused"},
    model="FalconForCausalLM",
    base="FalconModel",
    prefix="transformer.",
    heads={"score.": "classification", "classifier.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(["apply_residual_connection_post_layernorm"]),
    derive=_derive,
    undo=_undo,
    variant=lambda config: FALCON_TWO if config.parallel_residual and not config.shared_norm else None,
)
