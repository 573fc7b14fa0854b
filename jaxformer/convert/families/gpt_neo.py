"""GPT-Neo in transformers' format: GPT-2's shape with scores that are not scaled, and windows in some layers."""

from collections.abc import Collection
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import layer_types, read_layers
from jaxformer.convert.families.gpt2 import STACKS, TIED
from jaxformer.convert.family import Family, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType

_NAMES = {
    "embed.token": "transformer.wte",
    "embed.position": "transformer.wpe",
    "attention_norm": "ln_1",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
_KINDS = {"global": "full_attention", "local": "sliding_attention"}

GPT_NEO = Family(
    name="gpt_neo",
    stacks=STACKS,
    rules=(
        *projection_rules("attention", "attn.attention", ("q_proj", "k_proj", "v_proj"), "out_proj"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
    tied=TIED,
    ignored={"attn.attention.bias": "the causal mask", "attn.attention.masked_bias": "what hidden scores are set to"},
)
"""Family for `GPTConfig(activation="gelu_tanh", attention_scale=1.0, qkv_bias=False, tied=True)`, with `window` and
`layer_pattern`."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a window, every second one unless they are given, and the width of the feed-forward layer."""
    groups = found.pop("attention_types") or [[["global", "local"], 12]]
    types = [_KINDS[kind] for kinds, times in groups for _ in range(times) for kind in kinds]
    found["d_ff"] = 4 * found["d_model"] if found["d_ff"] is None else found["d_ff"]
    return found | read_layers(types, found)


def _undo(config: GPTConfig) -> dict[str, Any]:
    words = {theirs: word for word, theirs in _KINDS.items()}
    keys: dict[str, Any] = {"attention_types": [[[words[kind] for kind in layer_types(config)], 1]]}
    return keys | ({} if config.window is not None else {"window_size": 256})


GPT_NEO_TYPE = ModelType(
    name="gpt_neo",
    config=GPTConfig,
    family=GPT_NEO,
    keys={
        "vocab_size": Field("vocab_size", 50257),
        "max_position_embeddings": Field("context", 2048),
        "hidden_size": Field("d_model", 2048),
        "num_layers": Field("n_layers", 24),
        "num_heads": Field("n_heads", 16),
        "intermediate_size": Field("d_ff", None),
        "window_size": Field("window", 256),
        "attention_types": Field("attention_types", None),
        "activation_function": Field("activation", "gelu_new", ACTIVATIONS),
        "layer_norm_epsilon": Field("norm_epsilon", 1e-5),
        "resid_dropout": Field("residual_dropout", 0.0),
        "embed_dropout": Field("embedding_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie_word_embeddings": Field("tied", True),
    },
    fixed={"qkv_bias": False, "attention_scale": 1.0},
    model="GPTNeoForCausalLM",
    base="GPTNeoModel",
    prefix="transformer.",
    heads={"score.": "classification", "classifier.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(["attention_layers", "classifier_dropout", "summary_activation", "summary_first_dropout"])
    | {"summary_proj_to_labels", "summary_type", "summary_use_proj"},
    derive=_derive,
    undo=_undo,
)
