"""Convolution over frames, and the stem of two convolutions that embeds a spectrogram (Radford et al. 2022, section 2.2)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.linear import add_bias, matmul

WIDTH = 3
"""Number of frames that a convolution of the stem reads: one frame, and one on either side."""


class Convolution(nnx.Module):
    """Convolution over WIDTH frames, with a frame of zeros on either side, as one product of a frame and its neighbours.

    The kernel is (width, in, out), where torch's weight is (out, in, width).
    """

    def __init__(self, n_in: int, n_out: int, stride: int):
        self.stride = stride
        self.kernel = nnx.Param(jnp.zeros((WIDTH, n_in, n_out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_out, jnp.float32))

    def __call__(self, x: Float[Array, "B T I"]) -> Float[Array, "B S O"]:
        """Return the outputs for every `stride`-th frame, the first one included."""
        x, n_frames = jnp.pad(x.astype(self.kernel.dtype), ((0, 0), (1, 1), (0, 0))), x.shape[1]
        near = [x[:, i : i + n_frames : self.stride] for i in range(WIDTH)]
        y = matmul(jnp.concatenate(near, -1), self.kernel[...].reshape(-1, self.kernel.shape[-1]))
        return add_bias(y, self.bias[...])


class ConvolutionStem(nnx.Module):
    """gelu(conv2(gelu(conv1(frames)))): one token of every two frames, as conv2 has stride 2."""

    def __init__(self, config: EncoderDecoderConfig, n_features: int):
        self.conv1 = Convolution(n_features, config.token_width, stride=1)
        self.conv2 = Convolution(config.token_width, config.token_width, stride=2)

    def __call__(self, frames: Float[Array, "B _ M"]) -> Float[Array, "B S D"]:
        """Return the embedded tokens."""
        gelu = ACTIVATIONS["gelu"]
        return gelu(self.conv2(gelu(self.conv1(frames))))
