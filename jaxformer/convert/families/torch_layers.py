"""torch.nn's own layers: `torch.nn.MultiheadAttention`, `torch.nn.TransformerEncoder` and `torch.nn.Transformer`.

Queries, keys and values are packed into one tensor. Decoder layers of `torch.nn.Transformer` have one more norm in their
numbering, that of cross-attention."""

from jaxformer.convert.axes import Part
from jaxformer.convert.family import Family, Rule, attention_rules, module_rules

TORCH_ATTENTION = Family(name="torch_attention", stacks={}, rules=attention_rules("", ""))
"""Family for a `MultiHeadAttention`, with projections fused or separate."""

_NAMES = {"query": "q_proj_weight", "key": "k_proj_weight", "value": "v_proj_weight"}

TORCH_ATTENTION_WIDTHS = Family(
    name="torch_attention_widths",
    stacks={},
    rules=(
        *(Rule(f"{ours}.kernel", theirs, "transposed") for ours, theirs in _NAMES.items()),
        *(Rule(f"{ours}.bias", "in_proj_bias", part=Part(number, 3)) for number, ours in enumerate(_NAMES)),
        *module_rules("out", "out_proj"),
    ),
)
"""Family for `kdim` or `vdim`: keys or values of other widths have separate matrices, and packed biases."""


TORCH_ENCODER = Family(
    name="torch_encoder",
    stacks={"stack.blocks.": "layers.{layer}."},
    rules=(
        *attention_rules("attention", "self_attn"),
        *module_rules("attention_norm", "norm1"),
        *module_rules("feed_forward.up", "linear1"),
        *module_rules("feed_forward.down", "linear2"),
        *module_rules("feed_forward_norm", "norm2"),
        *module_rules("norm", "norm"),
    ),
)
"""Family for a module with `stack = Stack(config)` and, if torch's has one, `norm`; or for a `Block`, as its single layer.

The configuration is `BlockConfig(norm_position="pre" if norm_first else "post", activation=...)`; torch's default is post-norm
with relu. For a layer with `bias=False`, which has no biases in its norms either, `norm_bias`, `qkv_bias`, `output_bias` and
`feed_forward_bias` are False. For a model with embeddings and a head use `within`: a `GPT` or an `Encoder`, with
`stack_norm=True` if torch's has `norm`.
"""


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
