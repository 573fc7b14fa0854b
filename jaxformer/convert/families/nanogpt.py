"""nanoGPT and minGPT: GPT-2's names, with linear layers, whose weights are transposed."""

from dataclasses import replace

from jaxformer.convert.families.gpt2 import GPT2, gpt2_rules

NANOGPT = replace(GPT2, name="nanogpt", rules=gpt2_rules("transposed"))
"""Family for `GPTConfig(projections="fused", tied=True)`; for a nanoGPT with `bias=False`, `norm_bias`, `qkv_bias`,
`output_bias` and `feed_forward_bias` are False."""

MINGPT = replace(NANOGPT, name="mingpt", tied={})
"""Family for `GPTConfig(projections="fused", activation="gelu_tanh")`, whose head has its own matrix."""
