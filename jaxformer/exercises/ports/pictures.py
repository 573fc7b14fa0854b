"""The port: NNX modules of the same names, channels last."""

import jax
from flax import nnx

CHANNELS, WIDTH, LABELS, HEIGHT, ACROSS = 3, 6, 5, 8, 12


class Stem(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(CHANNELS, WIDTH, (3, 3), strides=2, padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, use_running_average=True, epsilon=1e-5, rngs=rngs)

    def __call__(self, x):
        return jax.nn.relu(self.norm(self.conv(x)))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.depthwise = nnx.Conv(WIDTH, WIDTH, (3, 3), padding=1, feature_group_count=WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 10, rngs=rngs), nnx.Linear(10, WIDTH, rngs=rngs)

    def __call__(self, x):
        y = self.norm(self.depthwise(x))
        return x + self.down(jax.nn.gelu(self.up(y), approximate=False))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.stem, self.block = Stem(rngs), Block(rngs)
        self.head = nnx.Linear(WIDTH * (HEIGHT // 4) * (ACROSS // 4), LABELS, rngs=rngs)

    def __call__(self, pixels):
        x = nnx.avg_pool(self.block(self.stem(pixels)), (2, 2), strides=(2, 2))
        return self.head(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


def make(weights):
    """The model with torch's weights, a dict of arrays by torch's names."""
    model = Model(nnx.Rngs(0))
    names = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        *owners, leaf = map(str, path)
        array = weights[".".join([*owners, names.get(leaf, leaf)])]
        if leaf == "kernel":
            array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        variable[...] = array
    return model


def call(model, pixels):
    """The logits of pictures `B C H W`, as torch has them."""
    return model(pixels.transpose(0, 2, 3, 1))
