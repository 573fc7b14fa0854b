"""GPT-2 as transformers has it (`GPT2LMHeadModel`): packed projections, and weights that need no transpose."""

from jaxformer.convert.rules import Family, Rule

_NAMES = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "norm": "transformer.ln_f",
}
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}

GPT2 = Family(
    name="gpt2",
    stacks={"stack.blocks.": "transformer.h.{layer}."},
    rules=(
        Rule("embed.token.table", "transformer.wte.weight"),
        Rule("embed.position.table", "transformer.wpe.weight"),
        *(Rule(f"{ours}.{leaf}", f"{theirs}.{_LEAVES[leaf]}") for ours, theirs in _NAMES.items() for leaf in _LEAVES),
    ),
)
"""For `GPTConfig(projections="fused", activation="gelu_tanh", tied=True)`."""
