"""Adversarial pictures and sounds: height and width, or lengths, that differ; a large mean; one that is constant."""

import numpy as np

from jaxformer.parity.probe.inputs import SHIFT
from jaxformer.validation.fields import check_seed, check_size

CONSTANT = 0.5
"""The value of a picture without contrast, whose variance is 0: there an epsilon decides."""


def probe_image(batch: int = 3, channels: int = 3, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Adversarial pictures `B C H W`, float32: `pixels = probe_image()`.

    Height and width differ, so that no axis is taken for the other. The first picture has a mean of 50, the last one is
    constant. InputError or ConfigError for sizes that do not fit.
    """
    check_size("batch", batch, least=3)
    for name, size in (("channels", channels), ("height", height), ("width", width)):
        check_size(name, size)
    check_seed(seed)
    pictures = np.random.default_rng(seed).standard_normal((batch, channels, height, width))
    pictures[0] += SHIFT
    pictures[-1] = CONSTANT
    return pictures.astype(np.float32)


def probe_audio(batch: int = 4, length: int = 1603, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Adversarial sounds `B T`, float32, and which of their samples are real: `waves, valid = probe_audio()`.

    The length is odd, so that a stride leaves samples over. The first sound has a mean of 50, the second is shorter, the last
    one is silent; padding is 0. InputError or ConfigError for sizes that do not fit.
    """
    check_size("batch", batch, least=4)
    check_size("length", length, least=4)
    check_seed(seed)
    waves, valid = np.random.default_rng(seed).standard_normal((batch, length)), np.ones((batch, length), bool)
    waves[0] += SHIFT
    valid[1, -(length // 3) :] = False
    waves[-1] = 0
    return np.where(valid, waves, 0).astype(np.float32), valid
