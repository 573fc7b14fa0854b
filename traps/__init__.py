"""Traps between PyTorch and JAX: forty small modules, each with a wrong and a right port.

`python -m traps` writes their pages."""

PAGES = {
    "layers": (
        "Layers",
        "layer_norm_epsilon epsilon_place standard_deviation gelu linear_kernel convolution_kernel same_padding "
        "transposed_convolution flatten group_norm",
    ),
    "attention": (
        "Attention and decoding",
        "attention_scale mask_polarity masked_rows window soft_cap packed_qkv rotary_pairs grouped_heads "
        "cache_positions end_id",
    ),
    "arrays": (
        "Models and arrays",
        "embedding_scale norm_place layer_order glu_halves remainder cumsum_dtype descending_sort slice_clamps in_place resize",
    ),
    "training": (
        "Gradients and training",
        "zero_gradient detach padding_idx dropout_place batch_norm ignore_index adam_epsilon weight_decay clipping schedule",
    ),
}
"""Folder of this package -> the title of its page, and its traps in order."""
TRAPS = [f"{folder}.{name}" for folder, (_, names) in PAGES.items() for name in names.split()]
"""Module of each trap, in this package."""
UNNAMED = (
    "attention.soft_cap",
    "attention.end_id",
    "arrays.layer_order",
)
"""Traps of which the report names the place, and not the cause."""
