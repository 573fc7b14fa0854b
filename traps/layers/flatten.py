"""Flattening channels first or last.

The linear layer after a convolution was trained on features in the order channel, row, column. A port with channels last
flattens row, column, channel: the same numbers in another order, and every shape fits.
"""

import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3 * 4 * 5, 7)

    def forward(self, x):
        return self.head(x.permute(0, 3, 1, 2).flatten(1))


INPUTS = (noise(2, 4, 5, 3),)


def wrong(p, x):
    x = x.reshape(len(x), -1)
    return jf.tap("head", x @ p["head.weight"].T + p["head.bias"])


def right(p, x):
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return jf.tap("head", x @ p["head.weight"].T + p["head.bias"])
