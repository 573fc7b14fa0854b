"""GPT-2 in transformers' format (`GPT2LMHeadModel`): packed projections, and weights that need no transpose; and nanoGPT and
minGPT, which have GPT-2's names, and linear layers, whose weights are transposed."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.axes import Layout, Part
from jaxformer.convert.family import Family, Rule, module_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only

_NAMES = {
    "embed.token": "transformer.wte",
    "embed.position": "transformer.wpe",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "norm": "transformer.ln_f",
}


def gpt2_rules(kernel: Layout) -> tuple[Rule, ...]:
    """Return rules for GPT-2's names, which nanoGPT and minGPT use too, with this layout of kernels; the head's is always
    transposed."""
    rules = (rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch, kernel))
    columns = 1 if kernel == "same" else 0
    separate = (
        rule
        for number, own in enumerate(("query", "key", "value"))
        for rule in (
            Rule(f"attention.{own}.kernel", "attn.c_attn.weight", kernel, Part(number, 3, columns)),
            Rule(f"attention.{own}.bias", "attn.c_attn.bias", part=Part(number, 3)),
        )
    )
    return *rules, *separate, *module_rules("head", "lm_head")


STACKS = {"stack.blocks.": "transformer.h.{layer}."}
TIED = {"lm_head.weight": "transformer.wte.weight"}
MASKS = {"attn.bias": "the causal mask", "attn.masked_bias": "what hidden scores are set to"}

GPT2 = Family(name="gpt2", stacks=STACKS, rules=gpt2_rules("same"), tied=TIED, ignored=MASKS)
"""Family for `GPTConfig(activation="gelu_tanh", tied=True)`, with projections fused or separate."""

NANOGPT = replace(GPT2, name="nanogpt", rules=gpt2_rules("transposed"))
"""Family for `GPTConfig(projections="fused", tied=True)`; for a nanoGPT with `bias=False`, `norm_bias`, `qkv_bias`,
`output_bias` and `feed_forward_bias` are False."""

MINGPT = replace(NANOGPT, name="mingpt", tied={})
"""Family for `GPTConfig(projections="fused", activation="gelu_tanh")`, whose head has its own matrix."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of the feed-forward layer to 4 times the model's, unless it is given."""
    return found | {"d_ff": 4 * found["d_model"] if found["d_ff"] is None else found["d_ff"]}


GPT2_TYPE = ModelType(
    name="gpt2",
    config=GPTConfig,
    family=GPT2,
    keys={
        "vocab_size": Field("vocab_size", 50257),
        "n_positions": Field("context", 1024),
        "n_embd": Field("d_model", 768),
        "n_layer": Field("n_layers", 12),
        "n_head": Field("n_heads", 12),
        "n_inner": Field("d_ff", None),
        "activation_function": Field("activation", "gelu_new", ACTIVATIONS),
        "layer_norm_epsilon": Field("norm_epsilon", 1e-5),
        "attn_pdrop": Field("attention_dropout", 0.1),
        "resid_pdrop": Field("residual_dropout", 0.1),
        "embd_pdrop": Field("embedding_dropout", 0.1),
        "tie_word_embeddings": Field("tied", True),
        "scale_attn_weights": Only(True, "scores would be divided by sqrt(head width), and are not there"),
        "scale_attn_by_inverse_layer_idx": Only(False, "the scores of layer i would lack the factor 1 / (i + 1)"),
        "reorder_and_upcast_attn": Only(False, "in half precision, scores would be rounded at other places"),
    },
    fixed={"projections": "fused"},
    model="GPT2LMHeadModel",
    base="GPT2Model",
    prefix="transformer.",
    heads={"score.": "classification", "classifier.": "classification", "multiple_choice_head.": "multiple choice"},
    harmless=frozenset(
        [
            "classifier_dropout",
            "n_ctx",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ]
    ),
    derive=_derive,
)
