"""A classifier of pictures: convolutions with a stride, batch norm, a depthwise block, a linear head on flattened features."""

import numpy as np
import torch

import jaxformer as jf

CHANNELS, WIDTH, LABELS, HEIGHT, ACROSS = 3, 6, 5, 8, 12


class Stem(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(CHANNELS, WIDTH, 3, stride=2, padding=1), torch.nn.BatchNorm2d(WIDTH)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 10), torch.nn.Linear(10, WIDTH)

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.down(torch.nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block = Stem(), Block()
        self.head = torch.nn.Linear(WIDTH * (HEIGHT // 4) * (ACROSS // 4), LABELS)

    def forward(self, pixels):
        x = torch.nn.functional.avg_pool2d(self.block(self.stem(pixels)), 2)
        return self.head(x.flatten(1))


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return (jf.probe_image(channels=CHANNELS, height=HEIGHT, width=ACROSS, seed=seed),)
