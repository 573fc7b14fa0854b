"""Arrays of either framework as numpy arrays."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def host(array: Any) -> np.ndarray:
    """On the host, of the same type; torch's bfloat16 too."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    array = array.detach().cpu()
    return array.float().numpy().astype(jnp.bfloat16) if str(array.dtype) == "torch.bfloat16" else array.numpy()
