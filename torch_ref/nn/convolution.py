"""Convolution over frames, and the stem of two convolutions that embeds a spectrogram (Radford et al. 2022, section 2.2)."""

from torch import Tensor, nn

from jaxformer.config.models import EncoderDecoderConfig
from torch_ref.nn.feedforward import ACTIVATIONS

WIDTH = 3
"""Number of frames that a convolution of the stem reads: one frame, and one on either side."""


class ConvolutionStem(nn.Module):
    """gelu(conv2(gelu(conv1(frames)))): one token of every two frames, as conv2 has stride 2."""

    def __init__(self, config: EncoderDecoderConfig, n_features: int):
        super().__init__()
        self.conv1 = nn.Conv1d(n_features, config.token_width, WIDTH, stride=1, padding=1)
        self.conv2 = nn.Conv1d(config.token_width, config.token_width, WIDTH, stride=2, padding=1)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the embedded tokens, `B S D`, of frames `B _ M`."""
        gelu = ACTIVATIONS["gelu"]
        return gelu(self.conv2(gelu(self.conv1(frames.mT)))).mT
