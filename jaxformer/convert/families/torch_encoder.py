"""`torch.nn.TransformerEncoder`: queries, keys and values packed into one tensor, as in `torch.nn.MultiheadAttention`."""

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
"""Family for a module with `stack = Stack(config)` and, if torch's has one, `norm`; or for a `Block`, as its single layer.

The configuration is `BlockConfig(norm_position="pre" if norm_first else "post", activation=...)`; torch's default is post-norm
with relu. For a layer with `bias=False`, which has no biases in its norms either, `norm_bias`, `qkv_bias`, `output_bias` and
`feed_forward_bias` are False. For a model with embeddings and a head use `within`: a `GPT` or an `Encoder`, with
`stack_norm=True` if torch's has `norm`.
"""
