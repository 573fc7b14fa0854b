"""BART as transformers has it (`BartForConditionalGeneration`), and Marian (`MarianMTModel`), which has sinusoids."""

from dataclasses import replace

from jaxformer.convert.family import Family, Rule, module_rules, projection_rules

_NAMES = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
    "embed.token": "model.shared",
    "embed.position": "model.decoder.embed_positions",
    "embed.norm": "model.decoder.layernorm_embedding",
    "source_embed.token": "model.encoder.embed_tokens",
    "source_embed.position": "model.encoder.embed_positions",
    "source_embed.norm": "model.encoder.layernorm_embedding",
}
_LINEARS = ("q_proj", "k_proj", "v_proj"), "out_proj"
_TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")

BART = Family(
    name="bart",
    stacks={f"{stack}.blocks.": f"model.{stack}.layers.{{layer}}." for stack in ("encoder", "decoder")},
    rules=(
        *projection_rules("attention", "self_attn", *_LINEARS),
        *projection_rules("cross_attention", "encoder_attn", *_LINEARS),
        *(rule for ours, theirs in _NAMES.items() for rule in module_rules(ours, theirs)),
        Rule("head.kernel", "lm_head.weight", "transposed"),
        Rule("head.bias", "final_logits_bias", "1 v -> v"),
    ),
    tied=dict.fromkeys(_TABLES, "model.shared.weight"),
)
"""For `EncoderDecoderConfig(norm_position="post", embedding_norm=True, position_offset=2, tied=True, head_bias=True,
padding_idx=1)`.

torch keeps the head's bias as a buffer, and never trains it: train with
`make_optimizer(..., frozen=lambda name, shape: name == "head.bias")`.
"""

MARIAN = replace(
    BART, name="marian", ignored={f"{stack}.embed_positions.weight": "sinusoids, frozen" for stack in ("encoder", "decoder")}
)
"""For `EncoderDecoderConfig(norm_position="post", positions="sinusoid_blocks", activation="silu", embedding_scale=True,
tied=True, head_bias=True, padding_idx=...)`; `source_vocab_size=...` where its vocabularies are two. The table that torch holds
is rounded to float32; `positions=FixedTable(model.model.decoder.embed_positions.weight)` has its numbers."""
