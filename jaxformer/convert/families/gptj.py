"""GPT-J and CodeGen in transformers' format: one norm for both branches of a parallel residual connection, and rotary pairs
side by side in a part of each head."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.axes import Part
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only
from jaxformer.errors import ConfigError

_NAMES = {
    "embed.token": "transformer.wte",
    "attention_norm": "ln_1",
    "feed_forward.up": "mlp.fc_in",
    "feed_forward.down": "mlp.fc_out",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
_MODULES = tuple(rule for pair in _NAMES.items() for rule in module_rules(*pair))
SHARDS = "(4 (m + m + m)) d -> d (4 m + 4 m + 4 m)"
"""Layout of CodeGen's packed projections: four groups of heads, each with its queries, values and keys, in this order."""

GPTJ = Family(
    name="gptj",
    stacks={"stack.blocks.": "transformer.h.{layer}."},
    rules=(*projection_rules("attention", "attn", ("q_proj", "k_proj", "v_proj"), "out_proj"), *_MODULES),
    tied={"lm_head.weight": "transformer.wte.weight"},
    ignored={
        "attn.bias": "the causal mask",
        "attn.causal_mask": "the causal mask",
        "attn.masked_bias": "what hidden scores are set to",
        "attn.embed_positions": "the angles of rotary positions, which the model computes",
    },
)
"""Family for `GPTConfig(positions="none", rotary="interleaved", rotary_dim=..., parallel_residual=True, shared_norm=True,
qkv_bias=False, output_bias=False, activation="gelu_tanh", head_bias=True)`."""
CODEGEN = replace(
    GPTJ,
    name="codegen",
    rules=(
        *(
            Rule(f"attention.{own}.kernel", "attn.qkv_proj.weight", SHARDS, Part(number, 3))
            for number, own in enumerate(("query", "value", "key"))
        ),
        *module_rules("attention.out", "attn.out_proj"),
        *_MODULES,
    ),
)
"""Family for GPT-J's configuration, with separate projections."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the rotated part of a head, the width of the feed-forward layer, and the head's bias, which a base model has not."""
    if found["rotary_dim"] is None:
        raise ConfigError("rotary_dim = null is not supported (a number is): angles would be those of another width")
    width, d_ff = found["d_model"] // found["n_heads"], 4 * found["d_model"] if found["d_ff"] is None else found["d_ff"]
    rotary_dim = None if found["rotary_dim"] == width else found["rotary_dim"]
    return found | {"d_ff": d_ff, "rotary_dim": rotary_dim, "head_bias": "lm_head.bias" in names}


def _undo(config: GPTConfig) -> dict[str, Any]:
    return {"rotary_dim": config.head_width if config.rotary_dim is None else config.rotary_dim}


GPTJ_TYPE = ModelType(
    name="gptj",
    config=GPTConfig,
    family=GPTJ,
    keys={
        "vocab_size": Field("vocab_size", 50400),
        "n_positions": Field("context", 2048),
        "n_embd": Field("d_model", 4096),
        "n_layer": Field("n_layers", 28),
        "n_head": Field("n_heads", 16),
        "n_inner": Field("d_ff", None),
        "rotary_dim": Field("rotary_dim", 64),
        "activation_function": Field("activation", "gelu_new", ACTIVATIONS),
        "layer_norm_epsilon": Field("norm_epsilon", 1e-5),
        "attn_pdrop": Field("attention_dropout", 0.0),
        "resid_pdrop": Field("residual_dropout", 0.0),
        "embd_pdrop": Field("embedding_dropout", 0.0),
        "tie_word_embeddings": Field("tied", False),
        "rotary": Only(True, "nothing would tell the tokens' order"),
        "scale_attn_weights": Only(True, "scores would be divided by sqrt(head width), and are not there"),
    },
    fixed={
        "positions": "none",
        "rotary": "interleaved",
        "parallel_residual": True,
        "shared_norm": True,
        "qkv_bias": False,
        "output_bias": False,
    },
    model="GPTJForCausalLM",
    base="GPTJModel",
    prefix="transformer.",
    heads={"score.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(
        ["n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"]
    ),
    derive=_derive,
    undo=_undo,
)
CODEGEN_TYPE = replace(GPTJ_TYPE, name="codegen", family=CODEGEN, model="CodeGenForCausalLM", base="CodeGenModel", heads={})
