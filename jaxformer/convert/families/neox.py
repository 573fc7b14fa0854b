"""GPT-NeoX in transformers' format (`GPTNeoXForCausalLM`, Pythia): queries, keys and values packed head by head."""

from collections.abc import Collection
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import ROPE, read_rope, rope_keys
from jaxformer.convert.family import Family, module_rules, packed_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType
from jaxformer.errors import ConfigError

_NAMES = {
    "embed.token": "gpt_neox.embed_in",
    "attention_norm": "input_layernorm",
    "attention.out": "attention.dense",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.up": "mlp.dense_h_to_4h",
    "feed_forward.down": "mlp.dense_4h_to_h",
    "norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
}

GPT_NEOX = Family(
    name="gpt_neox",
    stacks={"stack.blocks.": "gpt_neox.layers.{layer}."},
    rules=(
        *packed_rules("attention", "attention.query_key_value"),
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
    ),
    tied=dict.fromkeys(("embed_out.weight", "lm_head.weight"), "gpt_neox.embed_in.weight"),
    ignored={
        "attention.bias": "the causal mask",
        "attention.masked_bias": "what hidden scores are set to",
        "rotary_emb.inv_freq": "the angles of rotary positions, which the model computes",
    },
)
"""Family for `GPTConfig(positions="none", rotary="half", rotary_dim=..., parallel_residual=True)`, with projections fused or
separate. The head is `embed_out` in files, and `lm_head` in the memory of transformers 5."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the rotary fields, with a part of each head rotated.

    Versions before 5 write the base and the rotated part twice, and read one of them: ConfigError if the two differ.
    """
    base, part = found.pop("rotary_emb_base"), found.pop("rotary_pct")
    parameters, scaling, theta = (found.pop(name) for name in ROPE)
    rope = {"rope_theta": base, "partial_rotary_factor": part} | dict(scaling or parameters or {})
    for name, other in (("rope_theta", theta), ("partial_rotary_factor", found.pop("partial_rotary_factor"))):
        if other not in (None, rope[name]):
            raise ConfigError(f"{name} = {other} differs from {rope[name]}, which its rotary positions have; take it out")
    width = found["d_model"] // found["n_heads"]
    rotary_dim = int(width * rope.pop("partial_rotary_factor"))
    return found | read_rope(rope, found["context"]) | {"rotary_dim": None if rotary_dim == width else rotary_dim}


def _undo(config: GPTConfig) -> dict[str, Any]:
    part = 1.0 if config.rotary_dim is None else config.rotary_dim / config.head_width
    keys = rope_keys(config)
    keys["rope_parameters"]["partial_rotary_factor"] = part
    return keys | {"rotary_pct": part, "rotary_emb_base": keys.pop("rope_theta")}


GPT_NEOX_TYPE = ModelType(
    name="gpt_neox",
    config=GPTConfig,
    family=GPT_NEOX,
    keys={
        "vocab_size": Field("vocab_size", 50432),
        "max_position_embeddings": Field("context", 2048),
        "hidden_size": Field("d_model", 6144),
        "num_hidden_layers": Field("n_layers", 44),
        "num_attention_heads": Field("n_heads", 64),
        "intermediate_size": Field("d_ff", 24576),
        "hidden_act": Field("activation", "gelu", ACTIVATIONS),
        "layer_norm_eps": Field("norm_epsilon", 1e-5),
        "attention_bias": Field("qkv_bias", True, also=("output_bias",)),
        "use_parallel_residual": Field("parallel_residual", True),
        "attention_dropout": Field("attention_dropout", 0.0),
        "hidden_dropout": Field("residual_dropout", 0.0, also=("embedding_dropout",)),
        "tie_word_embeddings": Field("tied", False),
        "rotary_pct": Field("rotary_pct", 0.25),
        "rotary_emb_base": Field("rotary_emb_base", 10000.0),
        "partial_rotary_factor": Field("partial_rotary_factor", None),
        **ROPE,
    },
    fixed={"positions": "none", "rotary": "half", "projections": "fused"},
    model="GPTNeoXForCausalLM",
    base="GPTNeoXModel",
    prefix="gpt_neox.",
    heads={"score.": "classification", "classifier.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(["attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob"]),
    derive=_derive,
    undo=_undo,
)
