"""Images and texts that are drawn, for models that read them."""

import numpy as np

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.vision import VisionEncoderConfig

SHORTER = 3
"""Number of tokens by which a text is shorter than the one before it."""


def draw_images(rng: np.random.Generator, config: VisionEncoderConfig, batch: int) -> np.ndarray:
    """Return float32 images `B c height width`."""
    return rng.standard_normal((batch, config.channels, *config.image_size)).astype(np.float32)


def draw_texts(rng: np.random.Generator, config: DualEncoderConfig, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 ids `B T`, which end at different places if an id ends a text, and a bool mask of the tokens up to the
    end.

    The highest id ends a text where the model pools there; it stands in each text once.
    """
    size = config.text.vocab_size
    ids = rng.integers(0, size, (batch, length), np.int32)
    last = np.maximum(length - 1 - SHORTER * np.arange(batch), min(1, length - 1))
    end = size - 1 if config.text_pooling == "highest" else config.end
    if end is not None:
        ids[ids == end] = (end + 1) % size
        ids[np.arange(batch), last] = end
    return ids, np.arange(length) <= last[:, None]
