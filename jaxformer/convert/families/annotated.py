"""The Annotated Transformer: four linear layers per attention, norms by the standard deviation in `sublayer`."""

from jaxformer.convert.family import Family, Rule, module_rules, projection_rules

_LINEARS = ("linears.0", "linears.1", "linears.2"), "linears.3"


def _norm_rules(jax: str, torch: str) -> tuple[Rule, ...]:
    return Rule(f"{jax}.scale", f"{torch}.a_2"), Rule(f"{jax}.bias", f"{torch}.b_2")


ANNOTATED = Family(
    name="annotated",
    stacks={"encoder.blocks.": "encoder.layers.{layer}.", "decoder.blocks.": "decoder.layers.{layer}."},
    rules=(
        *projection_rules("attention", "self_attn", *_LINEARS),
        *projection_rules("cross_attention", "src_attn", *_LINEARS),
        *module_rules("feed_forward.up", "feed_forward.w_1"),
        *module_rules("feed_forward.down", "feed_forward.w_2"),
        *_norm_rules("attention_norm", "sublayer.0.norm"),
        *_norm_rules("cross_attention_norm", "sublayer.1.norm"),
        *_norm_rules("decoder.blocks.feed_forward_norm", "decoder.layers.{layer}.sublayer.2.norm"),
        *_norm_rules("feed_forward_norm", "sublayer.1.norm"),
        *_norm_rules("encoder_norm", "encoder.norm"),
        *_norm_rules("decoder_norm", "decoder.norm"),
        Rule("source_embed.token.table", "src_embed.0.lut.weight"),
        Rule("embed.token.table", "tgt_embed.0.lut.weight"),
        *module_rules("head", "generator.proj"),
    ),
    tied={"src_embed.0.lut.weight": "tgt_embed.0.lut.weight", "generator.proj.weight": "tgt_embed.0.lut.weight"},
    ignored={"pe": "sinusoids, which the model computes"},
)
"""Family for `EncoderDecoderConfig(norm="std", norm_epsilon=1e-6, activation="relu", positions="sinusoid",
embedding_scale=True, source_vocab_size=..., head_bias=True)`; with shared tables, `source_vocab_size=None` and `tied=True`."""
