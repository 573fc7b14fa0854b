"""`torch.nn.Transformer`: decoder layers have one more norm in their numbering, that of cross-attention."""

from jaxformer.convert.family import Family, attention_rules, module_rules

TORCH_TRANSFORMER = Family(
    name="torch_transformer",
    stacks={"encoder.blocks.": "encoder.layers.{layer}.", "decoder.blocks.": "decoder.layers.{layer}."},
    rules=(
        *attention_rules("attention", "self_attn"),
        *attention_rules("cross_attention", "multihead_attn"),
        *module_rules("attention_norm", "norm1"),
        *module_rules("cross_attention_norm", "norm2"),
        *module_rules("decoder.blocks.feed_forward_norm", "decoder.layers.{layer}.norm3"),
        *module_rules("feed_forward_norm", "norm2"),
        *module_rules("feed_forward.up", "linear1"),
        *module_rules("feed_forward.down", "linear2"),
        *module_rules("encoder_norm", "encoder.norm"),
        *module_rules("decoder_norm", "decoder.norm"),
    ),
)
"""Family for a module with `encoder = Stack(config)`, `encoder_norm`, `decoder = Stack(config, cross=True)` and `decoder_norm`.

torch has a norm after both stacks, with or without `norm_first`: an `EncoderDecoder` has them with `stack_norm=True`. torch's
decoder is causal only if `tgt_mask` is. For a model with embeddings and a head use `within`.
"""
