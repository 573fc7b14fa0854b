"""Attention by cuDNN's kernel, which writes no scores (Dao et al. 2022), where the program runs on an Nvidia card.

It takes bfloat16 and float16, and sums in float32. The PyTorch twin has the plain form alone.
"""

import functools

import jax
import jax.numpy as jnp

from jaxformer.nn.chunked_attention import Attend, Inputs
from jaxformer.parallel.mesh import traced_for

WIDEST = {8.0: 128, 9.0: 256}
"""Generation of cards (compute capability) -> the widest heads that the kernel takes from it on."""


def fused(given: Inputs, scale: float | None, *, causal: bool) -> Attend | None:
    """Return an `attend` by the kernel, without a mask but a `causal` one; None if the kernel does not take these inputs here.

    There is no forward-mode derivative.
    """
    q, k, v = given.q, given.k, given.v
    widest = max((width for first, width in WIDEST.items() if first <= generation()), default=0)
    halves = q.dtype in (jnp.bfloat16, jnp.float16)
    fits = q.shape[-1] == v.shape[-1] <= widest and q.shape[-1] % 8 == 0
    ordered = not causal or q.shape[1] == k.shape[1]
    if not (halves and fits and ordered and q.shape[1] > 1 and traced_for() is None):
        return None

    def attend(given: Inputs):
        return jax.nn.dot_product_attention(given.q, given.k, given.v, scale=scale, is_causal=causal, implementation="cudnn")

    return attend


@functools.cache
def generation() -> float:
    """Compute capability of the Nvidia card that programs run on; 0 without one."""
    if jax.default_backend() != "gpu":
        return 0.0
    device = jax.devices()[0]
    return float(device.compute_capability) if "cuda" in device.client.platform_version else 0.0
