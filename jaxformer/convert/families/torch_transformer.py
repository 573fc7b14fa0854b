"""`torch.nn.Transformer`: its decoder's layers number their norms with one more between, that of cross-attention."""

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
"""For a module with `encoder = Stack(config)`, `encoder_norm`, `decoder = Stack(config, cross=True)` and `decoder_norm`.

torch has both norms behind the stacks with `norm_first` or without: an `EncoderDecoder` has them with `stack_norm=True`. Its
decoder sees what `tgt_mask` lets it see. In a model with tables and a head it is found by `within`.
"""
