"""Image -> vectors of its patches, with learned tokens before them (Dosovitskiy et al. 2020, section 3.1)."""

import torch
from torch import Tensor, nn

from jaxformer.config.vision import VisionEncoderConfig
from torch_ref.nn.embeddings import Embedding
from torch_ref.nn.norms import make_norm


class PatchProjection(nn.Conv2d):
    """Convolution with a stride of one patch."""

    def __init__(self, config: VisionEncoderConfig):
        size = config.patch_size
        super().__init__(config.channels, config.d_model, size, stride=size, bias=config.patch_bias)

    def forward(self, images: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(images).flatten(2).mT


class ImageEmbedding(nn.Module):
    """dropout(norm([class token, distillation token, patches] + position)), with register tokens before the patches.

    The norm is there with `embedding_norm` only, positions with `learned_positions`; register tokens have none.
    """

    def __init__(self, config: VisionEncoderConfig):
        super().__init__()
        width = config.d_model
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.patch = PatchProjection(config)
        self.class_token = Embedding(1, width) if config.class_token else None
        self.distillation_token = Embedding(1, width) if config.distillation_token else None
        self.register_tokens = Embedding(config.register_tokens, width) if config.register_tokens else None
        self.mask_token = Embedding(1, width) if config.mask_token else None
        places = config.patches + config.class_token + config.distillation_token
        self.position = Embedding(places, width) if config.learned_positions else None
        self.norm = make_norm(config.norm if config.embedding_norm else "none", config)

    def forward(self, images: Tensor, masked: Tensor | None) -> Tensor:
        """Return the vectors of these images; where `masked` is True, the mask token takes the place of a patch."""
        x = self.patch(images)
        if masked is not None and self.mask_token is not None:
            x = torch.where(masked[..., None], self.mask_token.weight, x)
        first = [token.weight for token in (self.class_token, self.distillation_token) if token is not None]
        x = _before(first, x)
        x = x if self.position is None else x + self.position.weight
        if self.register_tokens is not None:
            x = torch.cat([x[:, : len(first)], _before([self.register_tokens.weight], x[:, len(first) :])], 1)
        return self.dropout(self.norm(x))


def _before(tokens: list[Tensor], x: Tensor) -> Tensor:
    """Put learned tokens before the vectors of every image."""
    return torch.cat([*(token.expand(x.shape[0], -1, -1) for token in tokens), x], 1)
