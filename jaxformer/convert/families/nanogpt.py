"""GPTs to learn by: nanoGPT and minGPT, with GPT-2's names and linear layers, whose weights are transposed; and the GPT of
"Build a Large Language Model (From Scratch)" (Raschka 2024)."""

from dataclasses import replace

from jaxformer.convert.families.gpt2 import GPT2, gpt2_rules
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules

NANOGPT = replace(GPT2, name="nanogpt", rules=gpt2_rules("transposed"))
"""Family for `GPTConfig(projections="fused", tied=True)`; for a nanoGPT with `bias=False`, `norm_bias`, `qkv_bias`,
`output_bias` and `feed_forward_bias` are False."""

MINGPT = replace(NANOGPT, name="mingpt", tied={})
"""Family for `GPTConfig(projections="fused", activation="gelu_tanh")`, whose head has its own matrix."""

_NAMES = {
    "embed.token": "tok_emb",
    "embed.position": "pos_emb",
    "feed_forward.up": "ff.layers.0",
    "feed_forward.down": "ff.layers.2",
    "head": "out_head",
}
_NORMS = {"attention_norm": "norm1", "feed_forward_norm": "norm2", "norm": "final_norm"}

RASCHKA = Family(
    name="raschka",
    stacks={"stack.blocks.": "trf_blocks.{layer}."},
    rules=(
        *projection_rules("attention", "att", ("W_query", "W_key", "W_value"), "out_proj"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
        *(
            Rule(f"{jax}.{ours}", f"{torch}.{theirs}")
            for jax, torch in _NORMS.items()
            for ours, theirs in (("scale", "scale"), ("bias", "shift"))
        ),
    ),
    tied={"out_head.weight": "tok_emb.weight"},
    ignored={"att.mask": "the causal mask"},
)
"""Family for `GPTConfig(activation="gelu_tanh", qkv_bias=...)`, with `qkv_bias=False` unless the model's `qkv_bias` is set."""
