"""GPT-2 as transformers has it (`GPT2LMHeadModel`): packed projections, and weights that need no transpose."""

from jaxformer.convert.axes import Layout
from jaxformer.convert.family import Family, Rule, module_rules

_NAMES = {
    "embed.token": "transformer.wte",
    "embed.position": "transformer.wpe",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "norm": "transformer.ln_f",
}


def gpt2_rules(kernel: Layout) -> tuple[Rule, ...]:
    """Of its names, which others use too; the head's kernel is torch's transposed in all of them."""
    rules = (rule for ours, theirs in _NAMES.items() for rule in module_rules(ours, theirs, kernel))
    return *rules, *module_rules("head", "lm_head")


STACKS = {"stack.blocks.": "transformer.h.{layer}."}
TIED = {"lm_head.weight": "transformer.wte.weight"}
MASKS = {"attn.bias": "the causal mask", "attn.masked_bias": "what hidden scores are set to"}

GPT2 = Family(name="gpt2", stacks=STACKS, rules=gpt2_rules("same"), tied=TIED, ignored=MASKS)
"""For `GPTConfig(projections="fused", activation="gelu_tanh", tied=True)`."""
