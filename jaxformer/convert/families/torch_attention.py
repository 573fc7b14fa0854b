"""`torch.nn.MultiheadAttention` on its own."""

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
