"""Products of groups of rows with a matrix each, as of experts: torch has them up to float32 alone, and here in float64."""

from typing import Any


def grouped_product(a: Any, b: Any, offsets: Any = None) -> Any:
    """What `torch.nn.functional.grouped_mm` gives. `offsets` are where groups end: of a's rows where b has a matrix for each
    (M K, G K N -> M N), of b's columns where a has (G M K, K N -> M N), and of what is summed where neither has
    (M K, K N -> G M N). What lies behind the last group is 0."""
    import torch

    if offsets is None:
        return a @ b
    ends = offsets.tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.ndim == b.ndim == 2:
        return torch.stack([a[:, part] @ b[part] for part in parts])
    rows, columns = a.shape[-2], b.shape[-1]
    out = a.new_zeros(rows, columns)
    for i, part in enumerate(parts):
        if a.ndim == 2:
            out[part] = a[part] @ b[i]
        else:
            out[:, part] = a[i] @ b[:, part]
    return out


def is_grouped_product(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation of torch's is one, in float64, and without a bias."""
    named = getattr(operation, "__name__", "").startswith("_grouped_mm.")
    return named and len(args) <= 3 and str(args[0].dtype) == "torch.float64"
