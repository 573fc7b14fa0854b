"""`torch.nn.TransformerEncoder`: queries, keys and values packed into one tensor, as `torch.nn.MultiheadAttention` has them."""

from jaxformer.convert.rules import Family, Layout, Part, Rule

_LAYOUTS: dict[str, Layout] = {"kernel": "transposed", "scale": "same", "bias": "same"}
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def attention_rules(ours: str, theirs: str) -> tuple[Rule, ...]:
    """`MultiheadAttention`, for projections that are fused or separate."""
    names = {"kernel": "in_proj_weight", "bias": "in_proj_bias"}
    fused = (Rule(f"{ours}.qkv.{leaf}", f"{theirs}.{name}", _LAYOUTS[leaf]) for leaf, name in names.items())
    separate = (
        Rule(f"{ours}.{own}.{leaf}", f"{theirs}.{name}", _LAYOUTS[leaf], Part(number, 3))
        for number, own in enumerate(("query", "key", "value"))
        for leaf, name in names.items()
    )
    return *fused, *separate, *module_rules(f"{ours}.out", f"{theirs}.out_proj")


def module_rules(ours: str, theirs: str) -> tuple[Rule, ...]:
    """`Linear` or `LayerNorm`."""
    return tuple(Rule(f"{ours}.{leaf}", f"{theirs}.{_LEAVES[leaf]}", _LAYOUTS[leaf]) for leaf in _LEAVES)


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
"""For a module with `stack = Stack(config)` and, where torch's has one, `norm`.

`BlockConfig(norm_position="pre" if norm_first else "post", activation=...)`; torch's default is post-norm with relu. A layer
with `bias=False` has none in its norms either: `norm_bias`, `qkv_bias`, `output_bias` and `feed_forward_bias` are False.
"""
