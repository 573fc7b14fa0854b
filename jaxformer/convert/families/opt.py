"""OPT in transformers' format: a decoder with learned positions that begin at 2, as BART's."""

from collections.abc import Collection
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.family import Family, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType
from jaxformer.errors import ConfigError

_NAMES = {
    "embed.token": "model.decoder.embed_tokens",
    "embed.position": "model.decoder.embed_positions",
    "embed.project": "model.decoder.project_in",
    "head.project": "model.decoder.project_out",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
}

OPT = Family(
    name="opt",
    stacks={"stack.blocks.": "model.decoder.layers.{layer}."},
    rules=(
        *projection_rules("attention", "self_attn", ("q_proj", "k_proj", "v_proj"), "out_proj"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
    tied={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
"""Family for `GPTConfig(activation="relu", position_offset=2, tied=True)`; of 350 M parameters, with
`norm_position="post", embedding_width=512, embedding_bias=False, positions_last=True`.

transformers' `OPTModel` has the linear layer behind its last state; here it is in front of the logits.
"""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set where norms stand, none after the stack with post-norm, and linear layers around it if the table is narrower."""
    before, removed = found.pop("do_layer_norm_before"), found.pop("_remove_final_layer_norm")
    found["norm_position"], found["stack_norm"] = "pre" if before else "post", bool(before and not removed)
    if (width := found["embedding_width"]) in (None, found["d_model"]):
        return found | {"embedding_width": None}
    if not found["tied"]:
        raise ConfigError(f"word_embed_proj_dim = {width} with tie_word_embeddings = False would be a head of its own width")
    return found | {"embedding_bias": False, "positions_last": True}


def _undo(config: GPTConfig) -> dict[str, Any]:
    before = config.norm_position == "pre"
    return {"word_embed_proj_dim": config.token_width} | {
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and config.final_norm == "none",
    }


OPT_TYPE = ModelType(
    name="opt",
    config=GPTConfig,
    family=OPT,
    keys={
        "vocab_size": Field("vocab_size", 50272),
        "hidden_size": Field("d_model", 768),
        "ffn_dim": Field("d_ff", 3072),
        "num_hidden_layers": Field("n_layers", 12),
        "num_attention_heads": Field("n_heads", 12),
        "max_position_embeddings": Field("context", 2048),
        "activation_function": Field("activation", "relu", ACTIVATIONS),
        "do_layer_norm_before": Field("do_layer_norm_before", True),
        "_remove_final_layer_norm": Field("_remove_final_layer_norm", False),
        "layer_norm_elementwise_affine": Field("norm_affine", True),
        "enable_bias": Field("qkv_bias", True, also=("output_bias", "feed_forward_bias")),
        "word_embed_proj_dim": Field("embedding_width", None),
        "dropout": Field("residual_dropout", 0.1),
        "attention_dropout": Field("attention_dropout", 0.0),
        "pad_token_id": Field("padding_idx", 1),
        "tie_word_embeddings": Field("tied", True),
    },
    fixed={"position_offset": 2},
    model="OPTForCausalLM",
    base="OPTModel",
    prefix="model.",
    heads={"score.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(["layerdrop", "activation_dropout"]),
    derive=_derive,
    undo=_undo,
)
