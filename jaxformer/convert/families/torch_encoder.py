"""`torch.nn.TransformerEncoder`: queries, keys and values packed into one tensor, as `torch.nn.MultiheadAttention` has them."""

from jaxformer.convert.family import Family, attention_rules, module_rules

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
"""For a module with `stack = Stack(config)` and, where torch's has one, `norm`; or a `Block` for its one layer.

`BlockConfig(norm_position="pre" if norm_first else "post", activation=...)`; torch's default is post-norm with relu. A layer
with `bias=False` has none in its norms either: `norm_bias`, `qkv_bias`, `output_bias` and `feed_forward_bias` are False. In a
model with a table and a head it is found by `within`: a `GPT` or an `Encoder` with `stack_norm=True` where torch's has `norm`.
"""
