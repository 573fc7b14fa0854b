"""Weights in MXFP4 (OCP Microscaling Formats 1.0, sections 5.3 and 6.3): blocks of 32 numbers of 4 bits with one exponent.

gpt-oss's files have `NAME_blocks`, two numbers in a byte, the lower half first, and `NAME_scales`, exponents with a bias of
127, for the transpose of a tensor NAME of the model. They are read as bfloat16, which holds them exactly, and not written.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConversionError

BLOCKS, SCALES = "_blocks", "_scales"
KEY = "quantization_config"
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = np.array([*_POSITIVE, *(-number for number in _POSITIVE)], np.float32)
"""Number of each pattern of 4 bits: sign, two bits of exponent, one of mantissa."""
BIAS = 127


def dequantized(described: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return config.json and tensors without MXFP4; others are returned as they are.

    ConversionError if blocks and scales do not fit.
    """
    config = described.get(KEY)
    if not isinstance(config, Mapping) or config.get("quant_method") != "mxfp4":
        return described, state
    whole = {name: tensor for name, tensor in state.items() if not name.endswith((BLOCKS, SCALES))}
    for name in (name.removesuffix(BLOCKS) for name in state if name.endswith(BLOCKS)):
        if f"{name}{SCALES}" not in state:
            raise ConversionError(f"{name}{BLOCKS} has no {name}{SCALES} beside it; copy the whole folder again")
        whole[name] = unpack(name, np.asarray(state[f"{name}{BLOCKS}"]), np.asarray(state[f"{name}{SCALES}"]))
    return {key: value for key, value in described.items() if key != KEY}, whole


def unpack(name: str, blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the tensor `E I O` in bfloat16 of blocks `E O n 16` and scales `E O n`, both uint8, where I = 32 n."""
    fits = blocks.ndim == 4 and blocks.shape[:-1] == scales.shape and blocks.shape[-1] == 16
    if not fits or {blocks.dtype, scales.dtype} != {np.dtype(np.uint8)}:
        found = f"{blocks.dtype}{list(blocks.shape)} and {scales.dtype}{list(scales.shape)}"
        raise ConversionError(
            f"{name}: blocks and scales are {found}; MXFP4 has uint8[experts, out, n, 16] and one scale a block"
        )
    numbers = NUMBERS[np.stack([blocks & 15, blocks >> 4], -1)].reshape(*scales.shape, 32)
    tensor = np.ldexp(numbers, scales[..., None].astype(np.int32) - BIAS).astype(jnp.bfloat16)
    return np.ascontiguousarray(tensor.reshape(*scales.shape[:2], -1).swapaxes(1, 2))
