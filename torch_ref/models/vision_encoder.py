"""Vision encoder: every patch of an image sees all others (Dosovitskiy et al. 2020)."""

import torch
from torch import Tensor, nn

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.validation.images import check_images, check_masked, check_states
from jaxformer.validation.inputs import check_config
from torch_ref.models.init import initialise
from torch_ref.nn.image_pooling import make_image_head, make_pooler
from torch_ref.nn.images import ImageEmbedding
from torch_ref.nn.norms import make_norm
from torch_ref.nn.rotary import patch_positions
from torch_ref.nn.stack import Stack


class VisionEncoder(nn.Module):
    """`logits = model(images)` with a head, else `states = model(images)`; in training mode dropout is on.

    `encode` gives the states whether there is a head or not, and `pool` makes one vector per image of them. Images are floats
    `B c height width`.
    """

    def __init__(self, config: VisionEncoderConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        self.config = check_config(config, VisionEncoderConfig)
        self.embed = ImageEmbedding(config)
        self.stack = Stack(config)
        self.norm = make_norm(config.final_norm, config)
        self.pooler = make_pooler(config)
        self.head = make_image_head(config)
        initialise(self, config, generator)

    def forward(self, images: Tensor, *, masked: Tensor | None = None) -> Tensor:
        """Return the head's logits `B C`, or without a head the state of every token."""
        states = self.encode(images, masked=masked)
        return states if self.head is None else self.head(self.pool(states), states)

    def encode(self, images: Tensor, *, masked: Tensor | None = None) -> Tensor:
        """Return the state of every token of an image; `masked` is True where the mask token takes the place of a patch."""
        states = self.stack(self._embed(images, masked), positions=patch_positions(self.config))
        return states if self.config.pooled_norm else self.norm(states)

    def pool(self, states: Tensor) -> Tensor:
        """Return the vector of each image, of the states that `encode` returns: `B X`."""
        check_states(states, self.config)
        if self.pooler is not None:
            return self.pooler(states)
        mean = states[:, self.config.first_patch :].mean(1)
        match self.config.pooling:
            case "mean":
                return mean
            case "class_mean":
                return torch.cat([states[:, 0], mean], -1)
        return self.norm(states[:, 0]) if self.config.pooled_norm else states[:, 0]

    def attention_weights(self, images: Tensor, *, masked: Tensor | None = None) -> Tensor:
        """Return the attention weights of every layer, for plotting: `L B N T T`."""
        return self.stack.weights(self._embed(images, masked), positions=patch_positions(self.config)).own

    def hidden_states(self, images: Tensor, *, masked: Tensor | None = None) -> Tensor:
        """Return the embedded image and the output of every layer, L + 1 in all; none has the last norm, as in transformers."""
        return self.stack.hidden_states(self._embed(images, masked), positions=patch_positions(self.config))

    def _embed(self, images: Tensor, masked: Tensor | None) -> Tensor:
        check_images(images, self.config)
        check_masked(masked, images.shape[0], self.config)
        return self.embed(images, masked)
