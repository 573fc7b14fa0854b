"""Dual encoder of images and texts, whose vectors lie in one space (Radford et al. 2021; Zhai et al. 2023)."""

import torch
from torch import Tensor, nn

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.validation.images import check_ends
from jaxformer.validation.inputs import check_config
from torch_ref.models.encoder import Encoder
from torch_ref.models.init import initialise
from torch_ref.models.vision_encoder import VisionEncoder
from torch_ref.nn.pooling import unit_norm


class DualEncoder(nn.Module):
    """`logits = model(images, tokens)`, one for each pair of an image and a text; in training mode dropout is on.

    `embed_images` and `embed_texts` give the vectors alone, of length 1, and `compare` the logits of such vectors.
    """

    def __init__(self, config: DualEncoderConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        self.config = check_config(config, DualEncoderConfig)
        self.vision = VisionEncoder(config.vision, generator=generator)
        self.text = Encoder(config.text, generator=generator)
        width = config.width
        self.image_projection = nn.Linear(config.vision.pooled_width, width, False) if config.image_projection else None
        self.text_projection = nn.Linear(config.text.d_model, width, config.text_projection_bias)
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self.logit_bias = nn.Parameter(torch.zeros(())) if config.logit_bias is not None else None
        initialise(self, config, generator)

    def forward(self, images: Tensor, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the logits of every pair of B images and X texts, image by row: `B X`."""
        return self.compare(self.embed_images(images), self.embed_texts(tokens, mask=mask))

    def embed_images(self, images: Tensor) -> Tensor:
        """Return the vector of each image, of length 1: `B P`."""
        x = self.vision.pool(self.vision.encode(images))
        return unit_norm(x if self.image_projection is None else self.image_projection(x))

    def embed_texts(self, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the vector of each text of `X T` ids, of length 1: `X P`."""
        check_ends(tokens.numpy(), self.config)
        return unit_norm(self.text_projection(self._pool(self.text(tokens, mask=mask), tokens)))

    def compare(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return exp(logit_scale) * images @ texts.T [+ logit_bias], of vectors of length 1: `B X`."""
        logits = images @ texts.T * self.logit_scale.exp()
        return logits if self.logit_bias is None else logits + self.logit_bias

    def _pool(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the state that stands for each text."""
        if self.config.text_pooling == "last":
            return states[:, -1]
        marked = tokens if self.config.end is None else (tokens == self.config.end).int()
        return states[torch.arange(len(states)), marked.argmax(1)]
