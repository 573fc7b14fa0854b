"""SAME padding with a stride.

`padding=1` of torch adds a row on both sides. "SAME" of JAX adds as much as the last window needs, and the odd one at the
end: with stride 2 the windows of an even length stand one pixel later. Without a stride both agree. Reported as flax 963,
and again as 2993.
"""

import torch
from flax import nnx

from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


INPUTS = (noise(2, 6, 8, 3),)


class Wrong(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), strides=2, padding="SAME", rngs=rngs)

    def __call__(self, x):
        return self.conv(x)


class Right(Wrong):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), strides=2, padding=1, rngs=rngs)
